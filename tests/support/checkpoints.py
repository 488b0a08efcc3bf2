"""Toy checkpoints, each made once per test session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tools import toy_checkpoint

Checkpoint = Callable[..., Path]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """``checkpoint(family, seed=0)`` -> folder."""
    made: dict[tuple[str, int], Path] = {}

    def get(family: str, seed: int = 0) -> Path:
        if (family, seed) not in made:
            made[family, seed] = toy_checkpoint.make(family, tmp_path_factory.mktemp(family), seed=seed)
        return made[family, seed]

    return get
