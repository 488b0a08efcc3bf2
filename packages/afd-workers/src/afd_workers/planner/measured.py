"""Reads the times that `tools/gpu/bench_step_gpu.py --json` writes, and the hops that go with them."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from afd_compat import json_file
from afd_workers.planner.model import Model
from afd_workers.planner.times import Point

#: Mean context in steps of that script: a prompt of 16 tokens, 4 to 68 more.
CONTEXT: Final = 52.0
_MS, _US = 1e-3, 1e-6
#: No size and no time of any step comes near.
_MOST: Final = 1e9


@dataclass(frozen=True, slots=True)
class Steps:
    """What a file holds. model: whose steps they are, see Model.dimensions; None where it does not say."""

    file: Path
    points: Sequence[Point]
    model: Mapping[str, object] | None

    def check(self, planned: Model) -> None:
        """ValueError when they are known to be another model's."""
        if self.model is None:
            return
        for name, value in planned.dimensions.items():
            if (found := self.model.get(name)) != value:
                raise ValueError(
                    f"Expected steps of the model that is planned for, whose {name} is {value}, in {self.file}, found "
                    f"{reprlib.repr(found)}: give this model's steps, or leave --times out for estimates."
                )


def read(file: Path) -> Steps:
    """A mapping whose "rows" is a list of rows and whose "model" is Model.dimensions; or, older, the list alone.

    Of each row, in milliseconds: rows, ffn, attention, native.
    attention_device: attention's graph alone on the device; without it, what native takes beyond the FFN role counts
    if that is less than attention, which also holds what the host does and the device does not wait for. hop_us, or
    hop_wire_us where the hop was timed alone: microseconds one way. context: tokens per request, CONTEXT without it.
    ValueError says what is missing.
    """
    found = json_file.read(file, f"the JSON of a benchmark of steps in {file}", "give what bench_step_gpu wrote")
    rows, model = (found.get("rows"), found.get("model")) if isinstance(found, dict) else (found, None)
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"Expected a list of measured rows in {file}, found none: give what bench_step_gpu wrote.")
    if model is not None and not isinstance(model, dict):
        raise ValueError(
            f'Expected the dimensions of a model as "model" in {file}, found {reprlib.repr(model)}: give what '
            "bench_step_gpu wrote."
        )
    return Steps(file, [_point(row, file) for row in rows], model)


def _point(row: Mapping[str, object], file: Path) -> Point:
    def number(key: str) -> float | None:
        value = row.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
            raise ValueError(
                f"Expected a number from 0 to {_MOST:.0e} as {key} in {file}, found {reprlib.repr(value)}: measure it "
                "again."
            )
        return float(value)

    def needed(key: str) -> float:
        value = number(key)
        if value is None:
            raise ValueError(f"Expected {key} in every row of {file}, found a row without it: measure it again.")
        return value

    ffn, native, attention = needed("ffn"), number("native"), number("attention_device")
    if attention is None:
        attention = needed("attention")
        if native is not None and native > ffn:
            attention = min(attention, native - ffn)
    hop, context = number("hop_wire_us"), number("context")
    return Point(
        rows=int(needed("rows")),
        context=CONTEXT if context is None else context,
        attention=attention * _MS,
        ffn=ffn * _MS,
        hop=(needed("hop_us") if hop is None else hop) * _US,
        native=None if native is None else native * _MS,
    )
