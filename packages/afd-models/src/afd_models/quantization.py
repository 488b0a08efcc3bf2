"""Bytes of a weight as a checkpoint's quantization_config stores it, from the configuration alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

Config = Mapping[str, object]

#: Keys under which methods list the modules that they leave as they are.
_IGNORED: Final = ("ignore", "modules_to_not_convert", "ignored_layers", "modules_not_to_convert")


@dataclass(frozen=True, slots=True)
class Quantization:
    """How one weight is stored.

    bits: of an element. block: rows and columns that share a scale of `scale` bytes, 0 for all of them. zeros: bits
    of a zero point per scale. ignored: names or re: patterns of modules that are left as they are.
    """

    bits: int
    block: tuple[int, int]
    scale: int
    zeros: int = 0
    ignored: tuple[str, ...] = ()

    def applies(self, path: str) -> bool:
        """Whether the linear layer at `path` is quantised."""
        return not any(_matches(pattern, path) for pattern in self.ignored)

    def size(self, rows: int, columns: int) -> int:
        """Bytes of a weight [rows, columns] with its scales and zero points."""
        scales = -(-rows // (self.block[0] or rows)) * -(-columns // (self.block[1] or columns))
        return (rows * columns * self.bits + scales * self.zeros + 7) // 8 + scales * self.scale


def quantization(config: Config) -> Quantization | None:
    """What config.json says, None for none; ValueError for a method whose sizes are not known here."""
    given = config.get("quantization_config")
    if given is None:
        return None
    if not isinstance(given, dict):
        raise ValueError(f"Expected a mapping for quantization_config, found {given!r}: correct config.json.")
    method = given.get("quant_method")
    ignored = tuple(str(each) for key in _IGNORED for each in given.get(key) or ())
    if method == "fp8":
        return Quantization(8, _pair(given.get("weight_block_size")), 4, ignored=ignored)
    if method in ("awq", "gptq"):
        bits, group = given.get("bits"), given.get("group_size")
        if isinstance(bits, int) and isinstance(group, int):
            return Quantization(bits, (1, max(group, 0)), 2, bits, ignored)
    if method == "compressed-tensors":
        return _compressed(given, ignored)
    raise ValueError(
        f"Expected quant_method fp8, awq, gptq or compressed-tensors with its sizes, found {method!r}: sizes of such a "
        "checkpoint are not known here."
    )


def _compressed(given: Mapping[str, object], ignored: tuple[str, ...]) -> Quantization:
    groups = given.get("config_groups")
    weights = [each.get("weights") for each in groups.values()] if isinstance(groups, dict) else []
    if len(weights) != 1 or not isinstance(weights[0], dict) or not isinstance(weights[0].get("num_bits"), int):
        raise ValueError("Expected one config group with num_bits of its weights, found others: not known here.")
    one = weights[0]
    if one.get("strategy") == "block":
        block = _pair(one.get("block_structure"))
    elif one.get("strategy") == "group":
        block = (1, int(one["group_size"]))
    else:
        block = (1, 0) if one.get("strategy") == "channel" else (0, 0)
    return Quantization(one["num_bits"], block, 4 if one["num_bits"] == 8 else 2, ignored=ignored)


def _pair(value: object) -> tuple[int, int]:
    return (int(value[0]), int(value[1])) if isinstance(value, list) else (0, 0)


def _matches(pattern: str, path: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], path) is not None
    return path == pattern or path.startswith(f"{pattern}.") or f".{pattern}." in f".{path}."
