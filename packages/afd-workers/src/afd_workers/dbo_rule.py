"""From how many rows on splitting a step is worth it, found by timing both ways once: overlap that loses stays off."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

log = logging.getLogger("afd.workers")

#: More rows than any step has: vLLM's threshold for never.
NEVER = 2**31 - 1


class Thresholds(Protocol):
    """The two numbers of vLLM's ParallelConfig by which it decides whether a step is split."""

    dbo_decode_token_threshold: int
    dbo_prefill_token_threshold: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of one step of `rows` rows."""

    rows: int
    whole: float
    split: float

    @property
    def worth_it(self) -> bool:
        """Whether splitting costs nothing."""
        return self.split <= self.whole

    def __str__(self) -> str:
        return f"{self.rows} rows {self.split:.2f} ms split, {self.whole:.2f} whole"


@dataclass(frozen=True, slots=True)
class Found:
    """From `least` rows on splitting pays, NEVER if it never does; timings: what was tried, most rows first."""

    least: int
    timings: tuple[Timing, ...]

    def __str__(self) -> str:
        if not self.timings:
            return "no size to try"
        told = "; ".join(map(str, (self.timings[0], self.timings[-1])[: len(self.timings)]))
        return f"{'off' if self.least == NEVER else f'from {self.least} rows on'} ({told})"


def search(sizes: Iterable[int], timed: Callable[[int], Timing]) -> Found:
    """Goes down from the largest size until splitting loses.

    The more rows a step has the more it gains, since half as many cost the FFN role almost as much: so below the
    first loss nothing is left to try, and start-up stays short where it always loses.
    """
    least, timings = NEVER, []
    for rows in sorted(set(sizes), reverse=True):
        timings.append(timed(rows))
        if not timings[-1].worth_it:
            break
        least = rows
    return Found(least, tuple(timings))


@contextmanager
def forced(thresholds: Thresholds, split: bool) -> Iterator[None]:
    """Inside, every step is split, or none."""
    kept = thresholds.dbo_decode_token_threshold, thresholds.dbo_prefill_token_threshold
    least = 2 if split else NEVER
    thresholds.dbo_decode_token_threshold = thresholds.dbo_prefill_token_threshold = least
    try:
        yield
    finally:
        thresholds.dbo_decode_token_threshold, thresholds.dbo_prefill_token_threshold = kept


def settle(thresholds: Thresholds, decode: Found | None, prefill: Found) -> None:
    """Raises vLLM's thresholds to what was found, and says so; decode: None where no decode graphs are."""
    if decode is not None:
        thresholds.dbo_decode_token_threshold = max(decode.least, thresholds.dbo_decode_token_threshold)
    thresholds.dbo_prefill_token_threshold = max(prefill.least, thresholds.dbo_prefill_token_threshold)
    steps = "by vLLM's threshold" if decode is None else str(decode)
    log.info("AFD timed dual-batch overlap: decode steps %s, other steps %s.", steps, prefill)
