"""OLMoE: every layer has experts; norms over all heads at once."""

from tools.toy_checkpoint.parts import BASE, Config, Shapes, Toy, decoder, experts, gqa, number


def _shapes(config: Config) -> Shapes:
    count, width, hidden = (number(config, k) for k in ("num_experts", "intermediate_size", "hidden_size"))

    def layer(_index: int, name: str) -> Shapes:
        yield from gqa(config, name)
        yield f"{name}.self_attn.q_norm.weight", (hidden,)
        yield f"{name}.self_attn.k_norm.weight", (hidden,)
        yield from experts(f"{name}.mlp", count, width, hidden)

    return decoder(config, layer)


TOYS = {
    "olmoe": Toy(
        {
            **BASE,
            "architectures": ["OlmoeForCausalLM"],
            "model_type": "olmoe",
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 4,
            "head_dim": 32,
            "num_experts": 8,
            "intermediate_size": 64,
            "norm_topk_prob": False,
            "clip_qkv": None,
        },
        _shapes,
    )
}
