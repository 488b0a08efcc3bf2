"""Waits that stay awake for a moment: inside a step the next message is nearer than the waking of a thread."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Longer than one layer takes on the other role, shorter than anyone notices once a step is over.
AWAKE_S = 0.004


def awake(look: Callable[[], T | None], until: float) -> T | None:
    """What ``look`` finds before time.monotonic() reaches ``until``, else None; lets others run between two looks."""
    while time.monotonic() < until:
        found = look()
        if found:
            return found
        os.sched_yield()
    return None
