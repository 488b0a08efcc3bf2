"""gpt-oss, unquantised: experts stored together with biases, a router with a bias, attention with sinks."""

from tools.toy_checkpoint.parts import BASE, Config, Shapes, Toy, decoder, gqa, number


def _shapes(config: Config) -> Shapes:
    hidden, width, count = (number(config, k) for k in ("hidden_size", "intermediate_size", "num_local_experts"))
    heads, kv_heads, head = (number(config, k) for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))

    def layer(_index: int, name: str) -> Shapes:
        yield from gqa(config, name)
        yield f"{name}.self_attn.q_proj.bias", (heads * head,)
        yield f"{name}.self_attn.k_proj.bias", (kv_heads * head,)
        yield f"{name}.self_attn.v_proj.bias", (kv_heads * head,)
        yield f"{name}.self_attn.o_proj.bias", (hidden,)
        yield f"{name}.self_attn.sinks", (heads,)
        yield f"{name}.mlp.router.weight", (count, hidden)
        yield f"{name}.mlp.router.bias", (count,)
        yield f"{name}.mlp.experts.gate_up_proj", (count, hidden, 2 * width)
        yield f"{name}.mlp.experts.gate_up_proj_bias", (count, 2 * width)
        yield f"{name}.mlp.experts.down_proj", (count, width, hidden)
        yield f"{name}.mlp.experts.down_proj_bias", (count, hidden)

    return decoder(config, layer)


TOYS = {
    "gpt-oss": Toy(
        {
            **BASE,
            "architectures": ["GptOssForCausalLM"],
            "model_type": "gpt_oss",
            "attention_bias": True,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "intermediate_size": 64,
            "num_local_experts": 8,
            "experts_per_token": 2,
            "sliding_window": 16,
            "swiglu_limit": 7.0,
            "rms_norm_eps": 1e-5,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "original_max_position_embeddings": 256,
                "truncate": False,
            },
        },
        _shapes,
    )
}
