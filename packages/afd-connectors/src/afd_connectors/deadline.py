"""Time limits of waits: every wait in this package holds one."""

from __future__ import annotations

import time
from collections.abc import Callable


class Deadline:
    """A moment `seconds` from now; `clock` is replaced in tests that simulate time."""

    __slots__ = ("_clock", "seconds", "start")

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.seconds = seconds
        self.start = clock()

    def spent(self) -> float:
        """Seconds since the deadline was set."""
        return self._clock() - self.start

    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.start + self.seconds - self._clock())

    @property
    def passed(self) -> bool:
        """Whether no time is left."""
        return self.remaining() <= 0.0

    def slice(self, most: float) -> float:
        """Seconds left, at most `most`: for waits that look around in between."""
        return min(most, self.remaining())
