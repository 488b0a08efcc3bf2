"""Chooses which attention ranks' steps an FFN rank serves together where whole steps are served."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from afd_connectors.step import Mode

GATHER_S = 0.001


class Waiting(NamedTuple):
    """The oldest step that a peer has announced and that is not served yet; since: time.monotonic()."""

    peer: int
    mode: Mode
    since: float


class Choice(NamedTuple):
    """peers: whose steps to serve now, ascending; otherwise wait_s: how long more are worth a wait."""

    peers: tuple[int, ...]
    wait_s: float | None = None


def choose(waiting: Sequence[Waiting], companions: Iterable[int], now: float, gather_s: float = GATHER_S) -> Choice:
    """The oldest step and, unless it is a capture, every other peer's step that is there.

    companions: connected peers of the last served step, which are waited for at most `gather_s`: ranks that were
    served together ended their step together, so they announce the next one almost together. A capture is served
    alone, because its rows do not move.
    """
    if not waiting:
        return Choice(())
    first = min(waiting, key=lambda each: (each.since, each.peer))
    if first.mode is Mode.CAPTURE:
        return Choice((first.peer,))
    together = tuple(sorted(each.peer for each in waiting if each.mode is not Mode.CAPTURE))
    here = {each.peer for each in waiting}
    left = first.since + gather_s - now
    if left > 0 and any(peer not in here for peer in companions):
        return Choice((), left)
    return Choice(together)
