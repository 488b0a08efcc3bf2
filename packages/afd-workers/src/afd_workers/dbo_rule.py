"""Which steps are worth splitting, found by timing both ways once: overlap that loses stays off."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

log = logging.getLogger("afd.workers")

#: More rows than any step has, and more context than any request: vLLM's threshold for never.
NEVER = 2**31 - 1


class Thresholds(Protocol):
    """The two numbers of vLLM's ParallelConfig by which it decides whether a step is split."""

    dbo_decode_token_threshold: int
    dbo_prefill_token_threshold: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of one step of `rows` rows, whose requests have `context` tokens behind them."""

    rows: int
    context: int
    whole: float
    split: float

    def __str__(self) -> str:
        return (
            f"{self.rows} rows with {self.context} tokens behind them {self.split:.2f} ms split, {self.whole:.2f} whole"
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """points: (rows, context from which on splitting as many pays), most rows first; timings: what was tried."""

    points: tuple[tuple[int, int], ...] = ()
    timings: tuple[Timing, ...] = ()

    def least(self, context: float) -> int:
        """From how many rows on splitting pays with as much context, NEVER if it never does."""
        return min((rows for rows, needed in self.points if needed <= context), default=NEVER)

    def __str__(self) -> str:
        points = ", ".join(f"{rows} rows from {context} tokens of context on" for rows, context in self.points)
        last = f" ({self.timings[-1]})" if self.timings else ""
        return f"{points or 'none'}{last}"


def search(sizes: Iterable[int], contexts: Sequence[int], timed: Callable[[int, int], Timing]) -> Rule:
    """Goes down from the largest size until splitting loses with every context.

    The more rows a step has the more it gains, since half as many cost the FFN role almost as much: so below the
    first size that always loses nothing is left to try, and start-up stays short.
    """
    points, timings = [], []
    for rows in sorted(set(sizes), reverse=True):
        tried = [timed(rows, context) for context in contexts]
        timings += tried
        needed = break_even(tried)
        if needed == NEVER:
            break
        points.append((rows, needed))
    return Rule(tuple(points), tuple(timings))


def break_even(tried: Sequence[Timing]) -> int:
    """The context from which on splitting costs nothing, by a straight line through the first and the last timing.

    Only attention's share grows with the context, which is what overlap hides. Beyond what was timed nothing is
    concluded: NEVER.
    """
    first, last = tried[0], tried[-1]
    lost, won = first.split - first.whole, last.whole - last.split
    if lost <= 0:
        return first.context
    if won < 0:
        return NEVER
    return first.context + round((last.context - first.context) * lost / (lost + won))


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


class Decider:
    """Raises vLLM's thresholds to what a rule says; they are never lowered below what the user gave.

    decode: None where decode steps have no graphs, so that vLLM's threshold is taken as it is.
    """

    def __init__(self, thresholds: Thresholds, decode: Rule | None, prefill: Rule) -> None:
        self._thresholds, self._decode = thresholds, decode
        self._given = thresholds.dbo_decode_token_threshold
        thresholds.dbo_prefill_token_threshold = max(prefill.least(0), thresholds.dbo_prefill_token_threshold)
        steps = "as vLLM's threshold says" if decode is None else str(decode)
        log.info("AFD timed dual-batch overlap; it splits decode steps: %s; other steps: %s.", steps, prefill)

    def step(self, computed: Sequence[int]) -> None:
        """Before a step; computed: the tokens that its running requests have behind them."""
        if self._decode is not None:
            least = self._decode.least(sum(computed) / len(computed) if computed else 0)
            self._thresholds.dbo_decode_token_threshold = max(self._given, least)
