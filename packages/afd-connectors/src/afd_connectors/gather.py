"""Which exchanges an FFN rank computes together: the rule alone, without sockets, tensors or clocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

GATHER_S = 0.001


class Ready(NamedTuple):
    """An exchange that has arrived whole; a tuple because one is made per exchange.

    previous: layer of the peer's exchange before it in this step and stage, -1 for the first;
    router: dtype code of its router logits, 0 for none; since: when it was complete, in seconds.
    """

    peer: int
    stage: int
    layer: int
    previous: int
    router: int
    since: float


class Underway(NamedTuple):
    """A peer that has announced rows for `stage`, was last answered at layer `previous` and owes the next."""

    peer: int
    stage: int
    previous: int


class Choice(NamedTuple):
    """members: exchanges to compute now, by peer; otherwise wait_s: how long more are worth a wait."""

    members: tuple[Ready, ...]
    wait_s: float | None = None


NOTHING = Choice(())


def choose(ready: Sequence[Ready], underway: Iterable[Underway], now: float, gather_s: float = GATHER_S) -> Choice:
    """The lowest layer first, with every peer that stands there; laggards are waited for at most `gather_s`.

    Lowest first makes peers that are apart meet: one that is ahead waits until the others have come up to its
    layer, which is at most one forward pass, and from then on all share each computation.
    """
    if not ready:
        return NOTHING
    first = min(ready, key=lambda r: (r.layer, r.since))
    members = tuple(
        sorted(
            (r for r in ready if (r.layer, r.stage, r.router) == (first.layer, first.stage, first.router)),
            key=lambda r: r.peer,
        )
    )
    here = {member.peer for member in members}
    laggard = any(u.stage == first.stage and u.previous == first.previous and u.peer not in here for u in underway)
    left = min(member.since for member in members) + gather_s - now
    if laggard and left > 0:
        return Choice((), left)
    return Choice(members)
