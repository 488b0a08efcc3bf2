"""Bytes of a weight as a checkpoint's quantization_config stores it, from the configuration alone."""

from __future__ import annotations

import re
import reprlib
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
        raise _wrong("a mapping for quantization_config", given)
    method, ignored = given.get("quant_method"), _ignored(given)
    if method == "fp8":
        block = given.get("weight_block_size")
        return Quantization(8, (0, 0) if block is None else _pair("weight_block_size", block), 4, ignored=ignored)
    if method in ("awq", "gptq"):
        bits = _whole("bits", given.get("bits"))
        return Quantization(bits, (1, _group(given)), 2, bits, ignored)
    if method == "compressed-tensors":
        return _compressed(given, ignored)
    raise ValueError(
        f"Expected quant_method fp8, awq, gptq or compressed-tensors, found {reprlib.repr(method)}: sizes of such a "
        "checkpoint are not known here."
    )


def _compressed(given: Mapping[str, object], ignored: tuple[str, ...]) -> Quantization:
    groups = given.get("config_groups")
    if not isinstance(groups, dict):
        raise _wrong("a mapping for config_groups of quantization_config", groups)
    if len(groups) != 1:
        raise ValueError(
            f"Expected one group in config_groups of quantization_config, found {len(groups)}: sizes of such a "
            "checkpoint are not known here."
        )
    [group] = groups.values()
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        raise _wrong("a group with a mapping for weights in config_groups of quantization_config", group)
    bits, strategy = _whole("num_bits", weights.get("num_bits")), weights.get("strategy")
    if strategy == "block":
        block = _pair("block_structure", weights.get("block_structure"))
    elif strategy == "group":
        block = (1, _group(weights))
    else:
        block = (1, 0) if strategy == "channel" else (0, 0)
    return Quantization(bits, block, 4 if bits == 8 else 2, ignored=ignored)


def _ignored(given: Mapping[str, object]) -> tuple[str, ...]:
    """Names and patterns of all keys, the patterns known to be some."""
    found: list[str] = []
    for key in _IGNORED:
        listed = given.get(key) or []
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            raise _wrong(f"a list of names for {key} of quantization_config", listed)
        found += listed
    for pattern in (each for each in found if each.startswith("re:")):
        try:
            re.compile(pattern[3:])
        except (re.error, OverflowError, RecursionError) as error:
            raise _wrong("regular expressions after re: in quantization_config", pattern) from error
    return tuple(found)


def _group(given: Mapping[str, object]) -> int:
    """Columns that share a scale, 0 for all of them, which checkpoints call -1."""
    found = given.get("group_size")
    return 0 if found == -1 else _whole("group_size", found)


def _pair(key: str, value: object) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise _wrong(f"two whole numbers for {key} of quantization_config", value)
    return _whole(key, value[0]), _whole(key, value[1])


def _whole(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _wrong(f"a whole number of at least 1 for {key} of quantization_config", value)
    return value


def _wrong(expected: str, found: object) -> ValueError:
    return ValueError(f"Expected {expected}, found {reprlib.repr(found)}: correct config.json.")


def _matches(pattern: str, path: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], path) is not None
    return path == pattern or path.startswith(f"{pattern}.") or f".{pattern}." in f".{path}."
