"""Numbers of a model from its config.json, each checked when it is asked for: names and places differ by family."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Final

Config = Mapping[str, object]

#: No number of any model comes near; layers are counted one by one.
_MOST: Final = 10**9
_MOST_LAYERS: Final = 10_000


def number(config: Config, *keys: str, default: int | None = None, least: int = 1, most: int = _MOST) -> int:
    """The first of `keys` that is there and not null; ValueError when that is no such number, or none is there."""
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"Expected a whole number for {key} in config.json, found {_short(value)}: correct it.")
        if not least <= value <= most:
            raise ValueError(f"Expected {least} to {most} for {key} in config.json, found {_short(value)}: correct it.")
        return value
    if default is None:
        raise ValueError(f"Expected {' or '.join(keys)} in config.json, found none: give the model's own config.json.")
    return default


def layer_count(config: Config) -> int:
    """Decoder layers, draft layers not among them."""
    return number(config, "num_hidden_layers", most=_MOST_LAYERS)


def architectures(config: Config) -> tuple[str, ...]:
    """The names that config.json gives."""
    names = config.get("architectures")
    return tuple(str(each) for each in names) if isinstance(names, list) else ()


def _short(value: object) -> str:
    return reprlib.repr(value)


def is_sparse(config: Config, layer: int) -> bool:
    """Whether a decoder layer has experts."""
    if "moe_num_experts" in config:
        return _is_sparse_ernie(config, layer)
    dense = config.get("mlp_only_layers")
    if isinstance(dense, list) and layer in dense:
        return False
    if layer < number(config, "first_k_dense_replace", default=0, least=0):
        return False
    if layer % number(config, "moe_layer_freq", default=1):
        return False
    if "interleave_moe_layer_step" in config:
        step = number(config, "interleave_moe_layer_step", default=1, least=0)
        return step > 0 and (layer + 1) % step == 0
    return (layer + 1) % number(config, "decoder_sparse_step", default=1) == 0


def _is_sparse_ernie(config: Config, layer: int) -> bool:
    """The keys that Ernie alone has: which layers, both ends among them; an end of -1 is the last layer."""
    first = number(config, "moe_layer_start_index", default=1, least=0)
    last = number(config, "moe_layer_end_index", default=-1, least=-1)
    within = first <= layer and (last < 0 or layer <= last)
    every = (layer + 1) % number(config, "moe_layer_interval", default=1) == 0
    return within and every and config.get("use_moe") is not False


def head_width(config: Config) -> int:
    """Elements of one attention head."""
    hidden, count = number(config, "hidden_size"), heads(config)
    if config.get("head_dim") is None and hidden < count:
        raise ValueError(
            f"Expected head_dim, or a hidden_size of at least num_attention_heads={count}, in config.json, found "
            f"hidden_size={hidden}: correct it."
        )
    return number(config, "head_dim", default=hidden // count)


def heads(config: Config) -> int:
    """Attention heads, of queries."""
    return number(config, "num_attention_heads")


def kv_heads(config: Config) -> int:
    """Key-value heads of grouped-query attention."""
    return number(config, "num_key_value_heads", "num_attention_heads")
