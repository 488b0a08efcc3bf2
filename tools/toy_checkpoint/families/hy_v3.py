"""Hy3: a dense first layer, sigmoid routing with a bias by a gate in float32, a shared expert."""

from tools.toy_checkpoint.parts import BASE, Config, Shapes, Toy, decoder, gqa, mlp, number


def _shapes(config: Config) -> Shapes:
    hidden, head, count = (number(config, key) for key in ("hidden_size", "head_dim", "num_experts"))
    width, shared = number(config, "expert_hidden_dim"), number(config, "num_shared_experts")

    def layer(index: int, name: str) -> Shapes:
        yield from gqa(config, name)
        yield f"{name}.self_attn.q_norm.weight", (head,)
        yield f"{name}.self_attn.k_norm.weight", (head,)
        if index < number(config, "first_k_dense_replace"):
            yield from mlp(f"{name}.mlp", number(config, "intermediate_size"), hidden)
            return
        yield f"{name}.mlp.router.gate.weight", (count, hidden)
        yield f"{name}.mlp.expert_bias", (count,)
        yield from mlp(f"{name}.mlp.shared_mlp", shared * width, hidden)
        for expert in range(count):
            yield from mlp(f"{name}.mlp.experts.{expert}", width, hidden)

    return decoder(config, layer)


TOYS = {
    "hy-v3": Toy(
        {
            **BASE,
            "architectures": ["HYV3ForCausalLM"],
            "model_type": "hy_v3",
            "num_key_value_heads": 2,
            "head_dim": 32,
            "qk_norm": True,
            "num_experts": 8,
            "num_shared_experts": 1,
            "expert_hidden_dim": 64,
            "first_k_dense_replace": 1,
            "moe_router_enable_expert_bias": True,
            "moe_router_use_sigmoid": True,
            "route_norm": True,
            "router_scaling_factor": 2.826,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        _shapes,
    )
}
