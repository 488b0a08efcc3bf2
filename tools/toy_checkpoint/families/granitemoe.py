"""Granite 3 MoE: all experts of a layer in two tensors, multipliers on residuals, embeddings and logits."""

from tools.toy_checkpoint.parts import BASE, Config, Shapes, Toy, decoder, gqa, number


def _shapes(config: Config) -> Shapes:
    count, width, hidden = (number(config, k) for k in ("num_local_experts", "intermediate_size", "hidden_size"))

    def layer(_index: int, name: str) -> Shapes:
        yield from gqa(config, name)
        yield f"{name}.block_sparse_moe.router.layer.weight", (count, hidden)
        yield f"{name}.block_sparse_moe.input_linear.weight", (count, 2 * width, hidden)
        yield f"{name}.block_sparse_moe.output_linear.weight", (count, hidden, width)

    return decoder(config, layer)


TOYS = {
    "granite-moe": Toy(
        {
            **BASE,
            "architectures": ["GraniteMoeForCausalLM"],
            "model_type": "granitemoe",
            "num_key_value_heads": 2,
            "head_dim": 32,
            "num_local_experts": 8,
            "intermediate_size": 64,
            "attention_multiplier": 0.0625,
            "embedding_multiplier": 2.0,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
        },
        _shapes,
    )
}
