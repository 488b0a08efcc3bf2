"""One kind of parameter of a model: its shape, how often it is there, and what it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Part = Literal["embedding", "attention", "gate", "shared", "dense", "experts"]
Split = Literal["rows", "columns", "whole"]


@dataclass(frozen=True, slots=True)
class Piece:
    """`count` equal parameters [rows, columns].

    path: module of one of them. split: what tensor parallelism divides; each rank has at least `unit` rows.
    quantizable: a weight of a linear layer or expert. bytes: of an element where it is not the model's. copy: vLLM
    makes it of others after loading.
    """

    path: str
    part: Part
    rows: int
    columns: int = 1
    count: int = 1
    split: Split = "whole"
    unit: int = 1
    quantizable: bool = False
    bytes: int | None = None
    copy: bool = False

    @property
    def elements(self) -> int:
        """Of all `count` together."""
        return self.rows * self.columns * self.count
