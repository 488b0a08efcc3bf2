"""When an FFN rank of several attention ranks chooses its next step: late, so that all that announced one share it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch

POLL_S = 0.00005


class Event(Protocol):
    """Of torch.cuda.Event."""

    def record(self) -> None:
        """Marks what the current stream has to do until here."""

    def query(self) -> bool:
        """Whether the device has done it."""


class Pace:
    """Attention ranks announce a step while the one before is computed, each in its own time.

    Choosing while the device is busy would part them for nothing: it could not begin any sooner, and attention takes
    longer to send its first rows than the choice takes.
    """

    def __init__(self, event: Callable[[], Event] = torch.cuda.Event) -> None:
        self._make = event
        self._last: Event | None = None

    def begun(self) -> None:
        """A step was enqueued on the current stream."""
        self._last = self._last or self._make()
        self._last.record()

    def free(self, wait_s: float) -> bool:
        """Whether the device has done all that was begun, or does within `wait_s` seconds."""
        until = time.monotonic() + wait_s
        while self._last is not None and not self._last.query():
            if time.monotonic() >= until:
                return False
            time.sleep(POLL_S)
        return True
