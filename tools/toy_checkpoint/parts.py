"""What the toy checkpoints of all families have in common: a small configuration and the tensors of usual layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

VOCABULARY = 320
Config = Mapping[str, object]
Shapes = Iterator[tuple[str, tuple[int, ...]]]

BASE: Config = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "attention_bias": False,
    "intermediate_size": 256,
}


@dataclass(frozen=True, slots=True)
class Toy:
    """config: the published config.json, small; shapes: every tensor of the published checkpoint with its shape.

    not_on_cpu: why vLLM itself cannot run it on a CPU, so that it is only built and loaded there.
    needs: module without which vLLM cannot import the family's file; CPU environments may lack it.
    files: text of further files by name, such as code that ``auto_map`` of the configuration names.
    """

    config: Config
    shapes: Callable[[Config], Shapes]
    not_on_cpu: str = ""
    needs: str = "vllm"
    files: Mapping[str, str] = field(default_factory=dict)


def decoder(config: Config, layer: Callable[[int, str], Shapes]) -> Shapes:
    """A decoder's tensors; layer: those of one decoder layer but its two norms, from its index and dotted name."""
    hidden = number(config, "hidden_size")
    yield "model.embed_tokens.weight", (VOCABULARY, hidden)
    for index in range(number(config, "num_hidden_layers")):
        name = f"model.layers.{index}"
        yield f"{name}.input_layernorm.weight", (hidden,)
        yield f"{name}.post_attention_layernorm.weight", (hidden,)
        yield from layer(index, name)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (VOCABULARY, hidden)


def gqa(config: Config, layer: str) -> Shapes:
    """Grouped-query attention without norms of its own."""
    hidden = number(config, "hidden_size")
    heads, kv_heads, width = (number(config, k) for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    yield f"{layer}.self_attn.q_proj.weight", (heads * width, hidden)
    yield f"{layer}.self_attn.k_proj.weight", (kv_heads * width, hidden)
    yield f"{layer}.self_attn.v_proj.weight", (kv_heads * width, hidden)
    yield f"{layer}.self_attn.o_proj.weight", (hidden, heads * width)


def qkv_bias(config: Config, layer: str) -> Shapes:
    """The biases of grouped-query attention's projections, where a model has them."""
    heads, kv_heads, width = (number(config, k) for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    yield f"{layer}.self_attn.q_proj.bias", (heads * width,)
    yield f"{layer}.self_attn.k_proj.bias", (kv_heads * width,)
    yield f"{layer}.self_attn.v_proj.bias", (kv_heads * width,)


def mlp(path: str, width: int, hidden: int) -> Shapes:
    """A gated feed-forward network, dense or one expert."""
    yield f"{path}.gate_proj.weight", (width, hidden)
    yield f"{path}.up_proj.weight", (width, hidden)
    yield f"{path}.down_proj.weight", (hidden, width)


def experts(path: str, count: int, width: int, hidden: int) -> Shapes:
    """A gate and its experts, each a gated feed-forward network."""
    yield f"{path}.gate.weight", (count, hidden)
    for expert in range(count):
        yield from mlp(f"{path}.experts.{expert}", width, hidden)


def number(config: Config, key: str) -> int:
    """An integer of a configuration; TypeError when it is none."""
    value = config[key]
    if not isinstance(value, int):
        raise TypeError(f"Expected a number for {key}, found {value!r}.")
    return value
