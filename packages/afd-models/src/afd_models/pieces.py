"""The parameters of a MoE model from its config.json alone: which there are, and what each belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from afd_models import linear_attention
from afd_models.numbers import Config, architectures, head_width, heads, is_sparse, kv_heads, layer_count, number
from afd_models.piece import Part, Piece, Split


@dataclass(frozen=True, slots=True)
class Traits:
    """What a family's config.json leaves to its code.

    norms: of queries and keys, per "head" or over "all" heads at once, which ranks share, or "whole" on each of them;
    norms_key: the key that asks for them, empty where they always are. qkv_bias: the key that says so, or "always".
    routing_bias: the same for the gate's correction bias. gate_bytes: of an element of the gate where it is not the
    model's. gate_bias: the gate, attention's output and all experts have biases, and each head a sink. gated: queries
    come with a gate of their own width.
    """

    norms: Literal["", "head", "all", "whole"] = ""
    norms_key: str = ""
    qkv_bias: str = ""
    routing_bias: str = ""
    gate_bytes: int | None = None
    gate_bias: bool = False
    gated: bool = False


TRAITS: Final[Mapping[str, Traits]] = {
    "DeepseekForCausalLM": Traits(),
    "DeepseekV2ForCausalLM": Traits(routing_bias="noaux_tc"),
    "DeepseekV3ForCausalLM": Traits(routing_bias="noaux_tc"),
    "Ernie4_5_MoeForCausalLM": Traits(routing_bias="always", gate_bytes=4),
    "Glm4MoeForCausalLM": Traits(
        norms="head", norms_key="use_qk_norm", qkv_bias="attention_bias", routing_bias="always", gate_bytes=4
    ),
    "GptOssForCausalLM": Traits(qkv_bias="attention_bias", gate_bias=True),
    "GraniteMoeForCausalLM": Traits(),
    "Llama4ForCausalLM": Traits(),
    "MiniMaxM2ForCausalLM": Traits(norms="all", routing_bias="use_routing_bias", gate_bytes=4),
    "MixtralForCausalLM": Traits(),
    "OlmoeForCausalLM": Traits(norms="whole"),
    "Qwen2MoeForCausalLM": Traits(qkv_bias="always"),
    "Qwen3MoeForCausalLM": Traits(norms="head", qkv_bias="attention_bias"),
    "Qwen3NextForCausalLM": Traits(norms="head", qkv_bias="attention_bias", gated=True),
    "Qwen3_5MoeForCausalLM": Traits(norms="head", qkv_bias="attention_bias", gated=True),
}

#: Names that families give to one number; the first one present counts.
_EXPERTS: Final = ("n_routed_experts", "num_experts", "moe_num_experts", "num_local_experts")
_WIDTH: Final = ("moe_intermediate_size", "intermediate_size")
_DENSE_WIDTH: Final = ("intermediate_size_mlp", "intermediate_size")


def traits(config: Config) -> Traits:
    """ValueError for an architecture whose parameters are not known here."""
    names = architectures(config)
    found = ", ".join(names)[:100] or "no architecture"
    for name in names:
        if name in TRAITS:
            return TRAITS[name]
    raise ValueError(
        f"Expected a model whose sizes are known ({', '.join(TRAITS)}), found {found}: "
        "give one of these, or add its traits to afd_models/pieces.py."
    )


def pieces(config: Config) -> Iterator[Piece]:
    """Every parameter of the model, without draft layers."""
    family, hidden, layers = traits(config), number(config, "hidden_size"), layer_count(config)
    vocabulary = number(config, "vocab_size")
    yield Piece("model.embed_tokens", "embedding", vocabulary, hidden, split="rows")
    if not config.get("tie_word_embeddings"):
        yield Piece("lm_head", "embedding", vocabulary, hidden, split="rows")
    yield Piece("model.norm", "attention", hidden)
    for layer in range(layers):
        path = f"model.layers.{layer}"
        yield Piece(f"{path}.norms", "attention", hidden, count=2)
        if linear_attention.has(config, layer):
            yield from linear_attention.pieces(config, path)
        else:
            latent = config.get("kv_lora_rank") is not None
            yield from _latent(config, path) if latent else _grouped(config, family, path)
        if is_sparse(config, layer):
            yield from _sparse(config, family, path)
        else:
            yield from _mlp(f"{path}.mlp", "dense", number(config, *_DENSE_WIDTH), hidden)


def _grouped(config: Config, family: Traits, layer: str) -> Iterator[Piece]:
    hidden, path = number(config, "hidden_size"), f"{layer}.self_attn"
    count, width, shared = heads(config), head_width(config), kv_heads(config)
    asked = count * width * (2 if family.gated else 1)
    yield Piece(f"{path}.q_proj", "attention", asked, hidden, split="rows", quantizable=True)
    yield Piece(f"{path}.k_proj", "attention", shared * width, hidden, 2, "rows", width, quantizable=True)
    yield Piece(f"{path}.o_proj", "attention", hidden, count * width, split="columns", quantizable=True)
    if family.qkv_bias == "always" or config.get(family.qkv_bias):
        yield Piece(f"{path}.q_proj", "attention", asked, split="rows")
        yield Piece(f"{path}.k_proj", "attention", shared * width, count=2, split="rows", unit=width)
    if family.norms == "head" and (not family.norms_key or config.get(family.norms_key)):
        yield Piece(f"{path}.qk_norm", "attention", width, count=2)
    if family.norms in ("all", "whole"):
        split: Split = "rows" if family.norms == "all" else "whole"
        yield Piece(f"{path}.q_norm", "attention", count * width, split=split)
        yield Piece(f"{path}.k_norm", "attention", shared * width, split=split, unit=width)
    if family.gate_bias:
        yield Piece(f"{path}.o_proj", "attention", hidden)
        yield Piece(f"{path}.sinks", "attention", count, split="rows")


def _latent(config: Config, layer: str) -> Iterator[Piece]:
    hidden, path = number(config, "hidden_size"), f"{layer}.self_attn"
    count, lora = heads(config), number(config, "kv_lora_rank")
    rope, nope, value = (number(config, key) for key in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
    rank = number(config, "q_lora_rank", default=0, least=0)
    if rank:
        yield Piece(f"{path}.q_a_proj", "attention", rank, hidden, quantizable=True)
        yield Piece(f"{path}.q_a_layernorm", "attention", rank)
    yield Piece(f"{path}.q_proj", "attention", count * (nope + rope), rank or hidden, split="rows", quantizable=True)
    yield Piece(f"{path}.kv_a_proj_with_mqa", "attention", lora + rope, hidden, quantizable=True)
    yield Piece(f"{path}.kv_a_layernorm", "attention", lora)
    yield Piece(f"{path}.kv_b_proj", "attention", count * (nope + value), lora, split="rows", quantizable=True)
    yield Piece(f"{path}.mla_attn", "attention", count * (nope + value), lora, split="rows", copy=True)
    yield Piece(f"{path}.o_proj", "attention", hidden, count * value, split="columns", quantizable=True)


def _sparse(config: Config, family: Traits, layer: str) -> Iterator[Piece]:
    hidden, count, width = number(config, "hidden_size"), number(config, *_EXPERTS), number(config, *_WIDTH)
    path = f"{layer}.mlp"
    yield Piece(f"{path}.gate", "gate", count, hidden, bytes=family.gate_bytes)
    if family.routing_bias in ("always", config.get("topk_method")) or config.get(family.routing_bias):
        yield Piece(f"{path}.gate", "gate", count, bytes=4)
    yield from _mlp(f"{path}.experts.0", "experts", width, hidden, count)
    if family.gate_bias:
        yield Piece(f"{path}.router", "gate", count)
        yield Piece(f"{path}.experts", "experts", 2 * width, count=count, split="rows", unit=2)
        yield Piece(f"{path}.experts", "experts", hidden, count=count)
    shared = number(config, "n_shared_experts", "moe_num_shared_experts", default=0, least=0) * width
    shared = shared or number(config, "shared_expert_intermediate_size", default=0, least=0)
    if "interleave_moe_layer_step" in config:
        shared = width  # Llama-4 has one always
    if shared:
        yield from _mlp(f"{path}.shared_experts", "shared", shared, hidden)
    if config.get("shared_expert_intermediate_size"):
        yield Piece(f"{path}.shared_expert_gate", "gate", 1, hidden)


def _mlp(path: str, part: Part, width: int, hidden: int, count: int = 1) -> Iterator[Piece]:
    """A gated feed-forward network, `count` times."""
    for name in ("gate_proj", "up_proj"):
        yield Piece(f"{path}.{name}", part, width, hidden, count, split="rows", quantizable=True)
    yield Piece(f"{path}.down_proj", part, hidden, width, count, split="columns", quantizable=True)
