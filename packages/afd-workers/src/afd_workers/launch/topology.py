"""How many ranks each role has, in the field's notation: 2A1F is two attention ranks and one FFN rank."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PATTERN = re.compile(r"([1-9][0-9]{0,3})A([1-9][0-9]{0,3})F", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Topology:
    """Numbers of attention and FFN ranks, both at least 1."""

    attention: int
    ffn: int

    @classmethod
    def parse(cls, text: str) -> Topology:
        """From ``xAyF``; ValueError for anything else."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise ValueError(
                f"Expected a topology such as 1A1F or 2A1F, found {text!r}: write xAyF with x and y above 0."
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.attention}A{self.ffn}F"
