"""Qwen3-MoE: every expert layer but the first, which is dense."""

from tools.toy_checkpoint.parts import BASE, Config, Shapes, Toy, decoder, experts, gqa, mlp, number


def _shapes(config: Config) -> Shapes:
    hidden, dense = number(config, "hidden_size"), config["mlp_only_layers"]

    def layer(index: int, name: str) -> Shapes:
        yield from gqa(config, name)
        yield f"{name}.self_attn.q_norm.weight", (number(config, "head_dim"),)
        yield f"{name}.self_attn.k_norm.weight", (number(config, "head_dim"),)
        if isinstance(dense, list) and index in dense:
            yield from mlp(f"{name}.mlp", number(config, "intermediate_size"), hidden)
        else:
            yield from experts(
                f"{name}.mlp", number(config, "num_experts"), number(config, "moe_intermediate_size"), hidden
            )

    return decoder(config, layer)


TOYS = {
    "qwen3-moe": Toy(
        {
            **BASE,
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "num_key_value_heads": 2,
            "head_dim": 32,
            "num_experts": 8,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [0],
            "norm_topk_prob": True,
        },
        _shapes,
    )
}
