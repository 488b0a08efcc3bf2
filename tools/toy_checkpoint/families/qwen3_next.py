"""Qwen3-Next and the text model of Qwen3.5-MoE: linear attention in most layers, shared experts with a gate."""

from tools.toy_checkpoint.parts import BASE, Config, Shapes, Toy, decoder, experts, gqa, mlp, number

_COMMON: Config = {
    **BASE,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "num_experts": 8,
    "shared_expert_intermediate_size": 64,
    "norm_topk_prob": True,
}


def _full_attention(config: Config, layer: str) -> Shapes:
    """Grouped-query attention whose queries come with a gate of the same width."""
    hidden, heads, head = (number(config, k) for k in ("hidden_size", "num_attention_heads", "head_dim"))
    for name, shape in gqa(config, layer):
        yield name, (2 * heads * head, hidden) if name.endswith("q_proj.weight") else shape
    yield f"{layer}.self_attn.q_norm.weight", (head,)
    yield f"{layer}.self_attn.k_norm.weight", (head,)


def _widths(config: Config) -> tuple[int, int, int]:
    """(keys, values, value heads) of linear attention."""
    heads = number(config, "linear_num_value_heads")
    keys = number(config, "linear_key_head_dim") * number(config, "linear_num_key_heads")
    return keys, number(config, "linear_value_head_dim") * heads, heads


def _linear_attention(config: Config, layer: str) -> Shapes:
    """A gated delta net, but for its projections of the input."""
    keys, values, heads = _widths(config)
    yield f"{layer}.linear_attn.conv1d.weight", (2 * keys + values, 1, number(config, "linear_conv_kernel_dim"))
    yield f"{layer}.linear_attn.dt_bias", (heads,)
    yield f"{layer}.linear_attn.A_log", (heads,)
    yield f"{layer}.linear_attn.norm.weight", (number(config, "linear_value_head_dim"),)
    yield f"{layer}.linear_attn.out_proj.weight", (number(config, "hidden_size"), values)


def _shared_expert(config: Config, layer: str) -> Shapes:
    hidden = number(config, "hidden_size")
    yield from mlp(f"{layer}.mlp.shared_expert", number(config, "shared_expert_intermediate_size"), hidden)
    yield f"{layer}.mlp.shared_expert_gate.weight", (1, hidden)


def _next_shapes(config: Config) -> Shapes:
    """Qwen3-Next: joined projections of linear attention, every expert on its own, a dense first layer."""
    hidden, width = number(config, "hidden_size"), number(config, "moe_intermediate_size")
    keys, values, heads = _widths(config)

    def layer(index: int, name: str) -> Shapes:
        if (index + 1) % 4 == 0:
            yield from _full_attention(config, name)
        else:
            yield from _linear_attention(config, name)
            yield f"{name}.linear_attn.in_proj_qkvz.weight", (2 * keys + 2 * values, hidden)
            yield f"{name}.linear_attn.in_proj_ba.weight", (2 * heads, hidden)
        if index == 0:
            yield from mlp(f"{name}.mlp", number(config, "intermediate_size"), hidden)
            return
        yield from _shared_expert(config, name)
        yield from experts(f"{name}.mlp", number(config, "num_experts"), width, hidden)

    return decoder(config, layer)


def _moe_shapes(config: Config) -> Shapes:
    """Qwen3.5-MoE: single projections of linear attention, all experts of a layer in one tensor, no dense layer."""
    hidden, width, count = (number(config, k) for k in ("hidden_size", "moe_intermediate_size", "num_experts"))
    keys, values, heads = _widths(config)

    def layer(index: int, name: str) -> Shapes:
        if (index + 1) % 4 == 0:
            yield from _full_attention(config, name)
        else:
            yield from _linear_attention(config, name)
            yield f"{name}.linear_attn.in_proj_qkv.weight", (2 * keys + values, hidden)
            yield f"{name}.linear_attn.in_proj_z.weight", (values, hidden)
            yield f"{name}.linear_attn.in_proj_b.weight", (heads, hidden)
            yield f"{name}.linear_attn.in_proj_a.weight", (heads, hidden)
        yield from _shared_expert(config, name)
        yield f"{name}.mlp.gate.weight", (count, hidden)
        yield f"{name}.mlp.experts.gate_up_proj", (count, 2 * width, hidden)
        yield f"{name}.mlp.experts.down_proj", (count, hidden, width)

    return decoder(config, layer)


TOYS = {
    "qwen3-next": Toy(
        {
            **_COMMON,
            "architectures": ["Qwen3NextForCausalLM"],
            "model_type": "qwen3_next",
            "partial_rotary_factor": 0.25,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [0],
        },
        _next_shapes,
    ),
    "qwen3.5-moe": Toy(
        {
            **_COMMON,
            "architectures": ["Qwen3_5MoeForCausalLM"],
            "model_type": "qwen3_5_moe_text",
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        },
        _moe_shapes,
        needs="torchvision",  # its file defines the multimodal wrapper too
    ),
}
