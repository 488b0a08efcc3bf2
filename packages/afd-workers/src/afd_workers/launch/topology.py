"""How often each role is there, in the field's notation: 2A1F is two attention replicas and one FFN rank."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PATTERN = re.compile(r"([1-9][0-9]{0,3})A([1-9][0-9]{0,3})F", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Topology:
    """Numbers of attention replicas and FFN ranks, both at least 1; tensor parallelism makes several processes of each.

    Every process of an attention replica is an attention rank, those of an FFN rank are one together.
    """

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

    def processes(self, tensor: int) -> int:
        """Of both roles, with ``tensor`` per attention replica and FFN rank."""
        return (self.attention + self.ffn) * tensor

    def __str__(self) -> str:
        return f"{self.attention}A{self.ffn}F"
