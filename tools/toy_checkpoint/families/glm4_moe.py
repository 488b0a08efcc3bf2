"""GLM-4-MoE: a dense first layer, sigmoid routing with a bias, a shared expert, biased projections in attention."""

from tools.toy_checkpoint.families.deepseek import feed_forward
from tools.toy_checkpoint.parts import BASE, Config, Shapes, Toy, decoder, gqa, number, qkv_bias


def _shapes(config: Config) -> Shapes:
    def layer(index: int, name: str) -> Shapes:
        yield from gqa(config, name)
        yield from qkv_bias(config, name)
        yield f"{name}.self_attn.q_norm.weight", (number(config, "head_dim"),)
        yield f"{name}.self_attn.k_norm.weight", (number(config, "head_dim"),)
        yield from feed_forward(config, index, name)

    return decoder(config, layer)


TOYS = {
    "glm4-moe": Toy(
        {
            **BASE,
            "architectures": ["Glm4MoeForCausalLM"],
            "model_type": "glm4_moe",
            "num_key_value_heads": 2,
            "head_dim": 32,
            "attention_bias": True,
            "use_qk_norm": True,
            "partial_rotary_factor": 0.5,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "topk_method": "noaux_tc",
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "n_group": 1,
            "topk_group": 1,
            "num_nextn_predict_layers": 0,
        },
        _shapes,
    )
}
