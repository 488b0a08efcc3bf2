"""Shares of one decode step of a split: what each role computes, what travels meanwhile, and what that hides.

All in microseconds of one host's clock, from kernels of profiler traces. A transfer kernel also waits for its peer, so
of one hop only the time counts in which rows can move: from when they are there and the receiver is, to the end of the
receipt. A hop is exposed while neither role computes. What is left of a step when a role neither computes nor has rows
on their way is that role's wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from tools.gpu.trace_read import SKIP, Launch, Span

#: Kernels of the transports by their names; NCCL's do not say which way rows go.
NCCL, PUT, WAITS, COPY = "nccl", "afd_put", ("afd_wait", "afd_await"), "afd_copy"
LATE_US = 100.0
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Shares:
    """Of one step. transfer: of all hops; waits: of either role."""

    step: float
    attention: float
    ffn: float = 0.0
    transfer: float = 0.0
    exposed: float = 0.0
    attention_waits: float = 0.0
    ffn_waits: float = 0.0

    @property
    def hidden(self) -> float:
        """The part of all transfers beside which something is computed; nan where there are none."""
        return 1 - self.exposed / self.transfer if self.transfer else float("nan")


def union(some: Iterable[Interval]) -> list[Interval]:
    """The same moments as intervals in order that do not touch."""
    found: list[Interval] = []
    for start, end in sorted(some):
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def length(some: Iterable[Interval]) -> float:
    """Of their union."""
    return sum(end - start for start, end in union(some))


def exposed(some: Iterable[Interval], others: Iterable[Interval]) -> float:
    """Length of what is in `some` and in none of `others`."""
    both = [*some, *(rest := list(others))]
    return length(both) - length(rest)


def moves(span: Span) -> bool:
    """Whether a kernel is a transport's."""
    return NCCL in span.name.lower() or span.name.startswith((PUT, *WAITS, COPY))


def receipts(spans: Sequence[Span]) -> list[Span]:
    """Of one-sided stores: each wait, to the end of the copy that belongs to it where there is one."""
    waits = sorted((span for span in spans if span.name.startswith(WAITS)), key=lambda span: span.end)
    copies = sorted((span for span in spans if span.name.startswith(COPY)), key=lambda span: span.end)
    if len(copies) != len(waits):
        return waits
    return [Span(wait.name, wait.start, copy.end) for wait, copy in zip(waits, copies, strict=True)]


def moving(first: Span, second: Span) -> list[Interval]:
    """When rows move in one hop of two kernels, of which one may have begun to wait for the other long before."""
    if first.end <= second.start or second.end <= first.start:  # put down, and picked up later
        return [(first.start, first.end), (second.start, second.end)]
    return [(max(first.start, second.start), max(first.end, second.end))]


def hops(attention: Launch, ffn: Launch, *, overlapped: bool) -> list[list[Interval]] | None:
    """When rows move in each hop of a step; None where the roles' kernels do not match.

    overlapped: steps of two stages. Where there is one, a kernel that sends may start before that ends which computes
    what it sends, and then waits for it.
    """
    ours, theirs = ([span for span in launch.kernels if moves(span)] for launch in (attention, ffn))
    if any(NCCL in span.name.lower() for span in ours):
        ours, theirs = (sorted(spans, key=lambda span: span.end) for spans in (ours, theirs))
        return [moving(*pair) for pair in zip(ours, theirs, strict=True)] if len(ours) == len(theirs) else None
    found: list[list[Interval]] = []
    for sender, receiver in ((attention, ffn), (ffn, attention)):
        puts = [span for span in sender.kernels if span.name.startswith(PUT)]
        taken = receipts(receiver.kernels)
        if len(puts) != len(taken):
            return None
        if not overlapped:
            puts = [_after_its_rows(put, sender) for put in puts]
        found += [moving(*pair) for pair in zip(puts, taken, strict=True)]
    return found


def _after_its_rows(put: Span, sender: Launch) -> Span:
    """From the end of the last kernel that computes before it."""
    ends = [span.end for span in sender.kernels if not moves(span) and span.start < put.start]
    return Span(put.name, min(put.end, max([put.start, *ends])), put.end)


def split(
    attention: Sequence[Launch], ffn: Sequence[Launch], beside: tuple[Sequence[Span], Sequence[Span]], *,
    overlapped: bool,
) -> list[Shares]:  # fmt: skip
    """Of each step that both traces hold. beside: all kernels of either role, also those outside of graphs."""
    found = []
    for one, after in pairwise(attention[SKIP:-SKIP]):
        # The FFN rank's graph may begin before attention's, waiting for it, but ends inside it.
        other = next((launch for launch in ffn if one.start < launch.end < one.end + LATE_US), None)
        moved = None if other is None else hops(one, other, overlapped=overlapped)
        if not moved:
            continue
        window = (one.start, after.start)
        ours, theirs = (_computing(spans, window) for spans in beside)
        travelling = [interval for each in moved for interval in each]
        found.append(
            Shares(
                window[1] - window[0],
                length(ours),
                length(theirs),
                sum(length(each) for each in moved),
                exposed(travelling, [*ours, *theirs]),
                exposed([window], [*ours, *travelling]),
                exposed([window], [*theirs, *travelling]),
            )
        )
    return found


def whole(steps: Sequence[Launch], beside: Sequence[Span]) -> list[Shares]:
    """Of each step of one process that computes everything."""
    found = []
    for one, after in pairwise(steps[SKIP:-SKIP]):
        window = (one.start, after.start)
        busy = _computing(beside, window)
        found.append(Shares(window[1] - window[0], length(busy), attention_waits=exposed([window], busy)))
    return found


def middle(found: Sequence[Shares]) -> Shares:
    """Medians."""
    columns = zip(*((s.step, s.attention, s.ffn, s.transfer, s.exposed, s.attention_waits, s.ffn_waits) for s in found),
                  strict=True)  # fmt: skip
    return Shares(*(median(column) for column in columns))


def _computing(spans: Sequence[Span], window: Interval) -> list[Interval]:
    clipped = ((max(span.start, window[0]), min(span.end, window[1])) for span in spans if not moves(span))
    return union(clipped)
