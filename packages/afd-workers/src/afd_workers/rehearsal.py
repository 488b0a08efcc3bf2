"""What an FFN rank on a CPU computes before a step: what its processor has not run for a while it runs slowly."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

AT_ONCE_S = 0.00005  # an exchange that is there so soon after a rehearsal has waited for its end
PAUSE_STEPS = 100  # after such a one, so that what that costs is nothing in the long run


class Rehearsal:
    """One stage of one row while attention works on its first layer; the result is nobody's.

    compute: [1, hidden] -> the stage's output. ended: whether one was made since `judge`.
    """

    def __init__(
        self, compute: Callable[[Tensor], Tensor], row: Tensor, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._compute, self._row, self._clock = compute, row, clock
        self._end, self._pause = 0.0, 0
        self.ended = False

    def __call__(self) -> None:
        """To be called when a step was announced and nothing of it is there."""
        if self._pause:
            self._pause -= 1
            return
        self._compute(self._row)
        self._end, self.ended = self._clock(), True

    def judge(self) -> None:
        """To be called when the next exchange has arrived: those that had to wait are not worth it."""
        self.ended = False
        if self._clock() - self._end < AT_ONCE_S:
            self._pause = PAUSE_STEPS
