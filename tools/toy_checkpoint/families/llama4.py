"""Llama-4's text model: every second layer has experts, stored together, with a shared one."""

from tools.toy_checkpoint.parts import BASE, Config, Shapes, Toy, decoder, gqa, mlp, number


def _shapes(config: Config) -> Shapes:
    hidden, width, count = (number(config, k) for k in ("hidden_size", "intermediate_size", "num_local_experts"))

    def layer(index: int, name: str) -> Shapes:
        yield from gqa(config, name)
        if (index + 1) % number(config, "interleave_moe_layer_step"):
            yield from mlp(f"{name}.feed_forward", number(config, "intermediate_size_mlp"), hidden)
            return
        yield f"{name}.feed_forward.router.weight", (count, hidden)
        yield f"{name}.feed_forward.experts.gate_up_proj", (count, hidden, 2 * width)
        yield f"{name}.feed_forward.experts.down_proj", (count, width, hidden)
        yield from mlp(f"{name}.feed_forward.shared_expert", width, hidden)

    return decoder(config, layer)


TOYS = {
    "llama4": Toy(
        {
            **BASE,
            "architectures": ["Llama4ForCausalLM"],
            "model_type": "llama4_text",
            "num_key_value_heads": 2,
            "head_dim": 32,
            "intermediate_size": 64,
            "intermediate_size_mlp": 128,
            "num_local_experts": 8,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 2,
            "no_rope_layers": [1, 1, 1, 0],
            "attention_chunk_size": 128,
            "use_qk_norm": True,
            "attn_temperature_tuning": True,
            "floor_scale": 8192,
            "attn_scale": 0.1,
        },
        _shapes,
    )
}
