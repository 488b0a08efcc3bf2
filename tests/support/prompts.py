"""Token prompts for the toy models."""

from __future__ import annotations

import random

BYTES = 256


def prompts(count: int, low: int, high: int, seed: int, *, shared: int = 0) -> list[list[int]]:
    """``count`` random prompts of ``low`` to ``high`` tokens, the first ``shared`` of them equal in all."""
    chance = random.Random(seed)
    head = [chance.randrange(2, BYTES) for _ in range(shared)]
    return [
        head + [chance.randrange(2, BYTES) for _ in range(chance.randint(low, high) - shared)] for _ in range(count)
    ]
