"""What an FFN rank on a CPU computes while attention works: a processor runs slowly what it has not run for a while."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from afd_connectors.awake import AWAKE_S, crowded

if TYPE_CHECKING:
    from torch import Tensor

AT_ONCE_S = 0.00005  # a step's first exchange that is there so soon after a rehearsal has waited for its end
SLACK_S = 0.00006  # how long before the soonest next exchange a rehearsal shall end, at least
LATER_S, SOONER_S = 0.00005, 0.0000005  # longer after one that was too long, shorter after each exchange that was not
PAUSE_STEPS = 100  # after one before a step that was too long, so that what that costs is nothing in the long run
PAUSE_EXCHANGES = 8  # after one within a step that was too long, in which the gaps are learned anew
GAPS = 8  # of so many the shortest but one is what the next is expected to be
LENGTHS = 4  # of so many the longest but one is what the next is expected to be


class Rehearsal:
    """One stage of one row while attention works on a layer; the result is nobody's.

    compute: (layer, [1, hidden]) -> the stage's output. first: the layer for the time before a step's first exchange.
    following: which layer is exchanged after which. Rehearsed is as late as leaves the next exchange undelayed, and
    only in steps that began while one attention rank alone was served, where nobody else wants this processor.
    """

    def __init__(
        self,
        compute: Callable[[int, Tensor], Tensor],
        row: Tensor,
        first: int,
        following: Mapping[int, int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._compute, self._row, self._first, self._following, self._clock = compute, row, first, following, clock
        self._gaps: deque[float] = deque(maxlen=GAPS)
        self._lengths: deque[float] = deque(maxlen=LENGTHS)
        self._in_step = self._before_step = False
        self._answered = self._begin = self._end = 0.0
        self._next: int | None = None
        self._seq: int | None = None
        self._steps_off = self._exchanges_off = 0
        self._slack = SLACK_S

    def __call__(self) -> None:
        """To be called when a step was announced by the only attention rank and nothing of it is there."""
        self._in_step, self._next, self._seq = True, None, None
        if self._steps_off:
            self._steps_off -= 1
        elif not crowded():
            self._run(self._first)
            self._before_step = True

    def answered(self, layer: int) -> None:
        """To be called when an exchange of ``layer`` was answered."""
        if self._in_step:
            self._answered, self._next = self._clock(), self._following.get(layer)
            self._in_step = self._next is not None

    def spare_s(self) -> float | None:
        """For how long the next exchange may be waited for before `between` is called; None where it shall not be."""
        if self._next is None or len(self._gaps) < GAPS or not self._lengths or crowded():
            return None
        if self._exchanges_off:
            self._exchanges_off -= 1
            return None
        self._begin = self._answered + sorted(self._gaps)[1] - sorted(self._lengths)[-2:][0] - self._slack
        spare = self._begin - self._clock()
        return spare if 0.0 < spare <= AWAKE_S else None  # a longer wait sleeps, and ends too late by some of that

    def between(self) -> bool:
        """To be called when nothing has come for `spare_s`; whether that came in time, so that a stage was computed."""
        if self._next is None or self._clock() > self._begin + SLACK_S / 2:
            return False
        self._run(self._next)
        return True

    def arrived(self, seq: int, *, late: bool = False) -> None:
        """To be called when an exchange of step ``seq`` has arrived; late: it was there when `between` ended.

        One that had to wait is followed by a pause and does not tell how soon the next comes. Gaps hold the time in
        which an exchange is taken in, which differs by transport and rows, so the slack is learned.
        """
        now = self._clock()
        self._in_step = self._in_step and self._seq in (None, seq)
        self._seq = seq
        if self._next is not None and late:
            self._exchanges_off, self._slack = PAUSE_EXCHANGES, self._slack + LATER_S
        elif self._next is not None:
            self._gaps.append(now - self._answered)
            self._slack = max(SLACK_S, self._slack - SOONER_S)
        elif self._before_step and now - self._end < AT_ONCE_S:
            self._steps_off = PAUSE_STEPS
        self._next, self._before_step = None, False

    def _run(self, layer: int) -> None:
        start = self._clock()
        self._compute(layer, self._row)
        self._end = self._clock()
        self._lengths.append(self._end - start)
