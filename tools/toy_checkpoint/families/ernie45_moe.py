"""ERNIE 4.5 MoE: a dense first layer, softmax routing with a bias, shared experts."""

from tools.toy_checkpoint.parts import BASE, Config, Shapes, Toy, decoder, experts, gqa, mlp, number


def _shapes(config: Config) -> Shapes:
    count, width, hidden = (number(config, k) for k in ("moe_num_experts", "moe_intermediate_size", "hidden_size"))

    def layer(index: int, name: str) -> Shapes:
        yield from gqa(config, name)
        if index < number(config, "moe_layer_start_index"):
            yield from mlp(f"{name}.mlp", number(config, "intermediate_size"), hidden)
            return
        yield f"{name}.mlp.moe_statics.e_score_correction_bias", (1, count)
        yield from experts(f"{name}.mlp", count, width, hidden)
        yield from mlp(f"{name}.mlp.shared_experts", width * number(config, "moe_num_shared_experts"), hidden)

    return decoder(config, layer)


TOYS = {
    "ernie4.5-moe": Toy(
        {
            **BASE,
            "architectures": ["Ernie4_5_MoeForCausalLM"],
            "model_type": "ernie4_5_moe",
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "use_bias": False,
            "moe_num_experts": 8,
            "moe_num_shared_experts": 2,
            "moe_k": 2,
            "moe_layer_start_index": 1,
            "moe_layer_interval": 1,
        },
        _shapes,
    )
}
