"""Qwen2-MoE: a shared expert with a gate of its own, biased projections in attention."""

from tools.toy_checkpoint.parts import BASE, Config, Shapes, Toy, decoder, experts, gqa, mlp, number, qkv_bias


def _shapes(config: Config) -> Shapes:
    hidden, shared = number(config, "hidden_size"), number(config, "shared_expert_intermediate_size")
    count, width, dense = (
        number(config, "num_experts"),
        number(config, "moe_intermediate_size"),
        config["mlp_only_layers"],
    )

    def layer(index: int, name: str) -> Shapes:
        yield from gqa(config, name)
        yield from qkv_bias(config, name)
        if isinstance(dense, list) and index in dense:
            yield from mlp(f"{name}.mlp", number(config, "intermediate_size"), hidden)
            return
        yield from experts(f"{name}.mlp", count, width, hidden)
        yield from mlp(f"{name}.mlp.shared_expert", shared, hidden)
        yield f"{name}.mlp.shared_expert_gate.weight", (1, hidden)

    return decoder(config, layer)


TOYS = {
    "qwen2-moe": Toy(
        {
            **BASE,
            "architectures": ["Qwen2MoeForCausalLM"],
            "model_type": "qwen2_moe",
            "num_key_value_heads": 2,
            "head_dim": 32,
            "num_experts": 8,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [0],
            "norm_topk_prob": False,
            "shared_expert_intermediate_size": 128,
            "qkv_bias": True,
            "use_sliding_window": False,
        },
        _shapes,
    )
}
