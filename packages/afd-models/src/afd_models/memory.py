"""Memory of each role and bytes per step of a model, from its config.json alone: nothing of vLLM or torch is needed."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from afd_models import linear_attention
from afd_models.families import load
from afd_models.keep import Keep, check_block
from afd_models.numbers import Config, architectures, head_width, heads, is_sparse, kv_heads, layer_count, number
from afd_models.piece import Part, Piece
from afd_models.pieces import pieces
from afd_models.quantization import Quantization, quantization
from afd_models.spec import MoE

_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
_VOCABULARY_STEP: Final = 64  # vLLM rounds embeddings up to it


@dataclass(frozen=True, slots=True)
class Split:
    """How a model is spread: ranks that share one copy of each role, and which FFN parts attention holds instead.

    expert_parallel: FFN ranks hold whole experts instead of parts of each, and still parts of shared experts and dense
    FFNs. gate_on_attention: router logits travel with the rows, and the FFN role holds no gate but its correction bias.
    data_parallel: ranks of native expert parallelism, each with the whole model but the experts, which they share.
    """

    attention_tp: int = 1
    ffn_tp: int = 1
    expert_parallel: bool = False
    gate_on_attention: bool = False
    shared_on_attention: bool = False
    dense_on_attention: bool = False
    data_parallel: int = 1

    def __post_init__(self) -> None:
        for name in ("attention_tp", "ffn_tp", "data_parallel"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"Expected {name} of at least 1, found {value}: give the number of ranks.")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of one model.

    parameters: of the whole model; attention_parameters, ffn_parameters: of each role, all its ranks together, so that
    gates that both hold count twice. whole, attention, ffn: bytes of weights as vLLM holds them after loading, of one
    native rank without tensor parallelism and of one rank of each role; experts: of ffn, those of which a step reads
    what its rows need. kv_per_token: bytes of KV cache per token on one attention
    rank. exchanges: per step and stage. exchanged_per_token: bytes that one token of a step sends to the FFN role and
    gets back, all layers together. state_per_request: bytes of linear attention's state on one attention rank.
    """

    parameters: int
    whole: int
    attention: int
    ffn: int
    experts: int
    kv_per_token: int
    exchanges: int
    exchanged_per_token: int
    attention_parameters: int
    ffn_parameters: int
    state_per_request: int


def sizes(config: Config, split: Split | None = None, *, kv_bytes: int | None = None) -> Sizes:
    """What `config` (a text model's config.json) costs where it is spread as `split` says.

    kv_bytes: of an element of the KV cache, where that is not the model's. ValueError names what is missing.
    """
    if kv_bytes is not None and kv_bytes < 1:
        raise ValueError(f"Expected at least 1 byte per element of the KV cache, found {kv_bytes}: give 1 for fp8.")
    chosen, every = split or Split(), tuple(pieces(config))
    families = [family for arch, family in load().items() if arch in architectures(config)]
    _check(config, every, chosen, families)
    element, quant, layers = _element(config), quantization(config), layer_count(config)
    sparse = sum(is_sparse(config, layer) for layer in range(layers))
    exchanges = sparse if chosen.dense_on_attention else layers
    row = 2 * exchanges * number(config, "hidden_size") * element
    if chosen.gate_on_attention:
        gate = next(piece for piece in every if piece.part == "gate")
        wide = gate.bytes or (4 if config.get("moe_router_dtype") == "float32" else element)
        row += sparse * gate.rows * wide
    attention, ffn = tuple(_attention(every, chosen, families)), tuple(_ffn(every, chosen))
    with_cache = sum(not linear_attention.has(config, layer) for layer in range(layers))
    learned = _BYTES.get(str(config.get("mamba_ssm_dtype")), element)
    return Sizes(
        parameters=_parameters(every),
        attention_parameters=_parameters(attention),
        ffn_parameters=_parameters(ffn),
        whole=_bytes(every, element, quant, Split(data_parallel=chosen.data_parallel), 1),
        attention=_bytes(attention, element, quant, chosen, chosen.attention_tp),
        ffn=_bytes(ffn, element, quant, chosen, chosen.ffn_tp),
        experts=_bytes((each for each in ffn if each.part == "experts"), element, quant, chosen, chosen.ffn_tp),
        kv_per_token=with_cache
        * _kv_elements(config, chosen.attention_tp)
        * (element if kv_bytes is None else kv_bytes),
        exchanges=exchanges,
        exchanged_per_token=row,
        state_per_request=linear_attention.state(config, chosen.attention_tp, element, learned),
    )


#: (where attention may keep it, the part that a model must have for that, what such a model has).
_KEPT: Final[tuple[tuple[str, Part, str], ...]] = (
    ("gate_on_attention", "gate", "layers of experts"),
    ("shared_on_attention", "shared", "shared experts"),
    ("dense_on_attention", "dense", "layers without experts"),
)


def _check(config: Config, every: Iterable[Piece], split: Split, families: Iterable[MoE]) -> None:
    """ValueError for a split that serving the model would refuse."""
    for family in families:
        check_block(family, Keep(gate=split.gate_on_attention, shared=split.shared_on_attention))
    parts = {piece.part for piece in every}
    for name, part, what in _KEPT:
        if getattr(split, name) and part not in parts:
            raise ValueError(f"{name} needs a model with {what}, found none: leave it out for this model.")
    if split.gate_on_attention and config.get("shared_expert_intermediate_size"):
        raise ValueError(
            "gate_on_attention needs a model whose gate stands alone, found one with a gate of its shared experts too: "
            "leave it out for this model."
        )
    if split.shared_on_attention and split.attention_tp > 1:
        raise ValueError(
            "shared_on_attention needs attention_tp=1, since each rank would hold a part of the sum, found "
            f"{split.attention_tp}: leave one of them out."
        )
    _check_heads(config, split.attention_tp)
    _check_widths(every, split)
    linear_attention.check(config, split.attention_tp)


def _check_heads(config: Config, ranks: int) -> None:
    """ValueError where vLLM cannot give each rank as many heads."""
    if heads(config) % ranks:
        raise ValueError(
            f"Expected attention_tp to divide the model's {heads(config)} attention heads, found {ranks}: give a "
            "divisor."
        )
    if config.get("kv_lora_rank") is None and kv_heads(config) % ranks and ranks % kv_heads(config):
        raise ValueError(
            f"Expected attention_tp to divide the model's {kv_heads(config)} key-value heads or be a multiple of them, "
            f"found {ranks}: give such a number."
        )


def _check_widths(every: Iterable[Piece], split: Split) -> None:
    """ValueError where vLLM cannot give each FFN rank as much of every expert or FFN; whole experts may be uneven."""
    for piece in _ffn(every, split):
        width = piece.rows if piece.split == "rows" else piece.columns if piece.split == "columns" else 0
        whole = piece.part == "experts" and split.expert_parallel
        if width % split.ffn_tp and not whole:
            raise ValueError(
                f"Expected ffn_tp to divide the width {width} of {piece.path}, found {split.ffn_tp}: give a divisor."
            )


def _attention(every: Iterable[Piece], split: Split, families: Iterable[MoE]) -> Iterable[Piece]:
    """What an attention rank holds: the gate too, which native blocks build, unless whole blocks are exchanged."""
    parts: set[Part] = _kept(split)
    parts.update(("embedding", "attention"))
    if not any(family.block for family in families):
        parts.add("gate")
    return (piece for piece in every if piece.part in parts)


def _ffn(every: Iterable[Piece], split: Split) -> Iterable[Piece]:
    """What an FFN rank holds: of a gate that is attention's, only the bias that the choice of experts uses."""
    parts: set[Part] = {"gate", "shared", "dense", "experts"}
    held = (piece for piece in every if piece.part in parts - _kept(split))
    return (piece for piece in held if piece.part != "gate" or not split.gate_on_attention or piece.columns == 1)


def _kept(split: Split) -> set[Part]:
    kept: set[Part] = set()
    if split.shared_on_attention:
        kept.add("shared")
    if split.dense_on_attention:
        kept.add("dense")
    return kept


def _parameters(held: Iterable[Piece]) -> int:
    return sum(piece.elements for piece in held if not piece.copy)


def _bytes(held: Iterable[Piece], element: int, quant: Quantization | None, split: Split, ranks: int) -> int:
    total = 0
    for piece in held:
        rows, columns, count = _share(piece, ranks, split)
        if quant is not None and piece.quantizable and quant.applies(piece.path):
            total += count * quant.size(rows, columns)
        else:
            total += count * rows * columns * (piece.bytes or element)
    return total


def _share(piece: Piece, ranks: int, split: Split) -> tuple[int, int, int]:
    """(rows, columns, count) on the rank that has most."""
    rows, columns, count = piece.rows, piece.columns, piece.count
    if piece.part == "embedding":
        rows = -(-rows // _VOCABULARY_STEP) * _VOCABULARY_STEP
    if piece.part == "experts" and (split.expert_parallel or split.data_parallel > 1):
        return rows, columns, -(-count // (ranks * split.data_parallel))
    if piece.split == "rows":
        return max(piece.unit, -(-rows // ranks)), columns, count
    if piece.split == "columns":
        return rows, -(-columns // ranks), count
    return rows, columns, count


def _kv_elements(config: Config, ranks: int) -> int:
    """Of one token and layer on one rank."""
    if config.get("kv_lora_rank") is not None:
        return number(config, "kv_lora_rank") + number(config, "qk_rope_head_dim")
    return 2 * max(1, kv_heads(config) // ranks) * head_width(config)


def _element(config: Config) -> int:
    name = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16").removeprefix("torch.")
    if name not in _BYTES:
        raise ValueError(
            f"Expected a dtype of {', '.join(_BYTES)} in config.json, found {reprlib.repr(name)}: correct it."
        )
    return _BYTES[name]
