"""Waits that stay awake for a moment: inside a step the next message is nearer than the waking of a thread."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Longer than one layer takes on the other role, shorter than anyone notices once a step is over.
AWAKE_S = 0.004
#: A yield that takes this long let somebody else work: a time slice is longer, a system call much shorter.
_SLICE_S = 0.001
#: So many waits in a row, and it is no hiccup of the host: others want this processor.
_CROWDED_WAITS = 3
#: How long they are then left alone. Who sleeps is let in at once when woken; who stays awake has used its turn.
_CROWDED_S = 0.25

#: A look in memory takes a small part of what a yield takes, so that one is found sooner by looking more than once.
LOOKS_IN_MEMORY = 8

_slow_waits = 0
_crowded_until = 0.0


def crowded() -> bool:
    """Whether others have been seen to want this processor of late, so that only work is worth its time."""
    return time.monotonic() < _crowded_until


def awake(look: Callable[[], T | None], until: float, looks: int = 1) -> T | None:
    """What ``look`` finds before time.monotonic() reaches ``until``, else None; lets others run after every ``looks``.

    None early, and for a while at once, where others want this processor: then a wait that sleeps is the faster one.
    """
    global _crowded_until, _slow_waits
    now = time.monotonic()
    if now < _crowded_until:  # not `crowded`, whose call takes longer than a look
        return look()
    slow = False
    while now < until:
        for _ in range(looks):
            found = look()
            if found:
                _slow_waits = _slow_waits + 1 if slow else 0
                return found
        if _slow_waits >= _CROWDED_WAITS:
            _slow_waits, _crowded_until = 0, now + _CROWDED_S
            return None
        os.sched_yield()
        before, now = now, time.monotonic()
        slow = slow or now - before > _SLICE_S
    _slow_waits = _slow_waits + 1 if slow else 0
    return None
