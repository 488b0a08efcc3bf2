"""DeepSeek V2 and V3, and Kimi K2, a V3 without groups: latent attention, shared experts, first layer dense."""

from tools.toy_checkpoint.parts import BASE, Config, Shapes, Toy, decoder, experts, mlp, number

_COMMON: Config = {
    **BASE,
    "num_key_value_heads": 4,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "q_lora_rank": None,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": False,
    "n_group": 1,
    "topk_group": 1,
}


def latent_attention(config: Config, layer: str) -> Shapes:
    """Multi-head latent attention, with or without a low-rank query."""
    hidden = number(config, "hidden_size")
    heads, rope, nope = (number(config, k) for k in ("num_attention_heads", "qk_rope_head_dim", "qk_nope_head_dim"))
    lora, value = number(config, "kv_lora_rank"), number(config, "v_head_dim")
    if config["q_lora_rank"] is None:
        yield f"{layer}.self_attn.q_proj.weight", (heads * (nope + rope), hidden)
    else:
        rank = number(config, "q_lora_rank")
        yield f"{layer}.self_attn.q_a_proj.weight", (rank, hidden)
        yield f"{layer}.self_attn.q_a_layernorm.weight", (rank,)
        yield f"{layer}.self_attn.q_b_proj.weight", (heads * (nope + rope), rank)
    yield f"{layer}.self_attn.kv_a_proj_with_mqa.weight", (lora + rope, hidden)
    yield f"{layer}.self_attn.kv_a_layernorm.weight", (lora,)
    yield f"{layer}.self_attn.kv_b_proj.weight", (heads * (nope + value), lora)
    yield f"{layer}.self_attn.o_proj.weight", (hidden, heads * value)


def feed_forward(config: Config, index: int, layer: str) -> Shapes:
    """Dense in the first layers; elsewhere experts, with shared ones and a bias of the gate where configured."""
    hidden, width = number(config, "hidden_size"), number(config, "moe_intermediate_size")
    if index < number(config, "first_k_dense_replace"):
        yield from mlp(f"{layer}.mlp", number(config, "intermediate_size"), hidden)
        return
    if config.get("topk_method") == "noaux_tc":
        yield f"{layer}.mlp.gate.e_score_correction_bias", (number(config, "n_routed_experts"),)
    yield from mlp(f"{layer}.mlp.shared_experts", width * number(config, "n_shared_experts"), hidden)
    yield from experts(f"{layer}.mlp", number(config, "n_routed_experts"), width, hidden)


def predictors(config: Config) -> Shapes:
    """The layers behind the last one that predict further tokens, as many as ``num_nextn_predict_layers``."""
    hidden, vocabulary = number(config, "hidden_size"), number(config, "vocab_size")
    first, count = number(config, "num_hidden_layers"), config.get("num_nextn_predict_layers", 0)
    for index in range(first, first + (count if isinstance(count, int) else 0)):
        layer = f"model.layers.{index}"
        yield f"{layer}.embed_tokens.weight", (vocabulary, hidden)
        for norm in ("enorm", "hnorm", "shared_head.norm", "input_layernorm", "post_attention_layernorm"):
            yield f"{layer}.{norm}.weight", (hidden,)
        yield f"{layer}.eh_proj.weight", (hidden, 2 * hidden)
        yield f"{layer}.shared_head.head.weight", (vocabulary, hidden)
        yield from latent_attention(config, layer)
        yield from feed_forward(config, index, layer)


def _shapes(config: Config) -> Shapes:
    def layer(index: int, name: str) -> Shapes:
        yield from latent_attention(config, name)
        yield from feed_forward(config, index, name)

    yield from decoder(config, layer)
    yield from predictors(config)


TOYS = {
    "deepseek-v2": Toy(
        {
            **_COMMON,
            "architectures": ["DeepseekV2ForCausalLM"],
            "model_type": "deepseek_v2",
            "topk_method": "greedy",
            "scoring_func": "softmax",
        },
        _shapes,
    ),
    "deepseek-v3": Toy(
        {
            **_COMMON,
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "norm_topk_prob": True,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 2.5,
            "q_lora_rank": 64,
            "num_nextn_predict_layers": 0,
        },
        _shapes,
    ),
    "kimi-k2": Toy(
        {
            **_COMMON,
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "kimi_k2",
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.827,
            "q_lora_rank": 64,
            "num_nextn_predict_layers": 0,
        },
        _shapes,
    ),
}
