"""MiniMax-M2: sigmoid routing with a bias, rotary embedding of half a head, norms over all heads at once."""

from tools.toy_checkpoint.families.mixtral import numbered
from tools.toy_checkpoint.parts import BASE, Config, Shapes, Toy, decoder, gqa, number


def _shapes(config: Config) -> Shapes:
    count, width, hidden = (number(config, k) for k in ("num_local_experts", "intermediate_size", "hidden_size"))
    heads, kv_heads, head = (number(config, k) for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))

    def layer(_index: int, name: str) -> Shapes:
        yield from gqa(config, name)
        yield f"{name}.self_attn.q_norm.weight", (heads * head,)
        yield f"{name}.self_attn.k_norm.weight", (kv_heads * head,)
        yield f"{name}.block_sparse_moe.e_score_correction_bias", (count,)
        yield from numbered(f"{name}.block_sparse_moe", count, width, hidden)

    return decoder(config, layer)


TOYS = {
    "minimax-m2": Toy(
        {
            **BASE,
            "architectures": ["MiniMaxM2ForCausalLM"],
            "model_type": "minimax_m2",
            "num_key_value_heads": 2,
            "head_dim": 32,
            "rotary_dim": 16,
            "num_local_experts": 8,
            "intermediate_size": 64,
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
            "use_qk_norm": True,
            "qk_norm_type": "per_layer",
            "num_mtp_modules": 0,
        },
        _shapes,
        not_on_cpu="vLLM's CPU routing knows sigmoid scores only with groups of experts",
    )
}
