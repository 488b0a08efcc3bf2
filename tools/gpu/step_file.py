"""The file of a benchmark of steps: its rows, and whose steps they are, which `afd plan --times` asks it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from afd_workers.planner.model import Model
from tools.gpu.setups import DIMENSIONS


def write(file: Path, model: str, rows: Sequence[Mapping[str, float]]) -> None:
    """model: a name of DIMENSIONS."""
    whose = dict(Model.of(DIMENSIONS[model]).dimensions)
    file.write_text(json.dumps({"model": whose, "rows": list(rows)}, indent=1) + "\n")


def rows(file: Path) -> list[dict[str, float]]:
    """What `write` wrote."""
    found: list[dict[str, float]] = json.loads(file.read_text())["rows"]
    return found
