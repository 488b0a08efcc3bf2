"""The parameters and the state of linear attention, which some models have in most of their layers."""

from __future__ import annotations

from collections.abc import Iterator

from afd_models.numbers import Config, layer_count, number
from afd_models.piece import Piece

_EVERY = 4  # layers of which the last has full attention, where config.json does not say


def has(config: Config, layer: int) -> bool:
    """Whether a decoder layer has linear attention, a gated delta net, instead of full attention."""
    if "linear_num_value_heads" not in config:
        return False
    types = config.get("layer_types")
    if isinstance(types, list) and layer < len(types):
        return str(types[layer]) == "linear_attention"
    return (layer + 1) % number(config, "full_attention_interval", default=_EVERY) != 0


def pieces(config: Config, layer: str) -> Iterator[Piece]:
    """The parameters of one such layer's attention."""
    hidden, path = number(config, "hidden_size"), f"{layer}.linear_attn"
    keys, values, heads = _widths(config)
    taps = number(config, "linear_conv_kernel_dim")
    yield Piece(f"{path}.in_proj_qkvz", "attention", 2 * (keys + values), hidden, split="rows", quantizable=True)
    yield Piece(f"{path}.in_proj_ba", "attention", 2 * heads, hidden, split="rows", quantizable=True)
    yield Piece(f"{path}.conv1d", "attention", 2 * keys + values, taps, split="rows")
    yield Piece(f"{path}.dt_bias", "attention", heads, split="rows")
    yield Piece(f"{path}.A_log", "attention", heads, split="rows", bytes=4)
    yield Piece(f"{path}.norm", "attention", number(config, "linear_value_head_dim"))
    yield Piece(f"{path}.out_proj", "attention", hidden, values, split="columns", quantizable=True)


def state(config: Config, ranks: int, element: int, wide: int) -> int:
    """Bytes that one request takes on one of ``ranks``, however long it is; ``wide`` of an element of what it learned.

    element: bytes of one of the inputs that the convolution still needs.
    """
    layers = sum(has(config, layer) for layer in range(layer_count(config)))
    if not layers:
        return 0
    keys, values, _ = _widths(config)
    inputs = (2 * keys + values) // ranks * (number(config, "linear_conv_kernel_dim") - 1)
    learned = values // ranks * number(config, "linear_key_head_dim")
    return layers * (inputs * element + learned * wide)


def check(config: Config, ranks: int) -> None:
    """ValueError where vLLM cannot give each of ``ranks`` as many heads."""
    for name in ("linear_num_key_heads", "linear_num_value_heads"):
        if name in config and number(config, name) % ranks:
            raise ValueError(
                f"Expected attention_tp to divide the model's {name}={number(config, name)}, found {ranks}: give a "
                "divisor."
            )


def _widths(config: Config) -> tuple[int, int, int]:
    """(all keys, all values, heads of values) of one layer."""
    heads = number(config, "linear_num_value_heads")
    keys = number(config, "linear_num_key_heads") * number(config, "linear_key_head_dim")
    return keys, heads * number(config, "linear_value_head_dim"), heads
