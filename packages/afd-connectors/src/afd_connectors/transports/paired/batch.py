"""What an FFN rank computes at once: the rows of every attention rank that stands at one layer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from afd_connectors.gather import NOTHING, Choice, Ready, choose
from afd_connectors.layout import Layout
from afd_connectors.ports import Work
from afd_connectors.shape import Shape
from afd_connectors.step import Step
from afd_connectors.transports.paired.buffers import Buffer, router_row_bytes
from afd_connectors.transports.paired.peer import Peer

Members = tuple[tuple[Peer, int, int], ...]


class Ticket(NamedTuple):
    """Whom a work answers: (peer, step seq, rows) in the order of the rows; a tuple as Work is."""

    members: Members
    rows: int


class Batches:
    """Chooses and puts together works; `out` holds the ticket of each stage's work that has no answer yet."""

    def __init__(self, layout: Layout, shape: Shape, gather_s: float) -> None:
        self.out: dict[int, Ticket] = {}
        self._shape, self._gather_s = shape, gather_s
        peers, stages = len(layout.peers), range(shape.stages)
        self._gathered = [Buffer(shape, shape.tokens * peers) for _ in stages if peers > 1]

    def take_lone(self, served: Sequence[Peer], stage: int | None) -> Work | None:
        """What `choose` and `take` give where one peer is served and has sent one exchange, at once; None elsewhere."""
        if len(served) != 1 or len(served[0].ready) != 1 or served[0].dropped:
            return None
        lead = served[0]
        (found,) = lead.ready
        if found in self.out or stage not in (None, found):
            return None
        return self._take_alone(lead, lead.ready[found])

    def choose(self, served: Sequence[Peer], stage: int | None) -> Choice:
        """Which exchanges of `stage` (None: of any) to compute now, or how long more are worth a wait."""
        ready: list[Ready] = []
        for peer in served:
            if peer.ready and not peer.dropped:
                for place, found in peer.ready.items():
                    if place not in self.out and (stage is None or place == stage):
                        ready.append(found)
        if not ready:
            return NOTHING
        underway = [u for peer in served if not peer.dropped for u in peer.underway()]
        return choose(ready, underway, time.monotonic(), self._gather_s)

    def take(self, served: Sequence[Peer], members: tuple[Ready, ...]) -> Work:
        """The work of a choice among the same peers."""
        by_rank = {peer.rank: peer for peer in served}
        if len(members) == 1:
            return self._take_alone(by_rank[members[0].peer], members[0])
        _, stage, layer, _, code, _ = members[0]
        peers = [by_rank[member.peer] for member in members]
        taken = tuple((peer, _step_of(peer).seq, peer.rows[stage]) for peer in peers)
        self._copy_together(taken, stage, code)
        for peer in peers:
            del peer.ready[stage]
        return self._work(_step_of(peers[0]), layer, stage, self._gathered[stage], code, taken)

    def _take_alone(self, lead: Peer, ready: Ready) -> Work:
        _, stage, layer, _, code, _ = ready
        step = _step_of(lead)
        lead.lent.add(stage)
        del lead.ready[stage]
        return self._work(step, layer, stage, lead.buffers[stage], code, ((lead, step.seq, lead.rows[stage]),))

    def _work(self, step: Step, layer: int, stage: int, buffer: Buffer, code: int, taken: Members) -> Work:
        rows = taken[0][2] if len(taken) == 1 else sum(count for _, _, count in taken)
        # The call of a named tuple's own type takes twice as long, and two are made per exchange.
        ticket: Ticket = tuple.__new__(Ticket, (taken, rows))
        self.out[stage] = ticket
        router = buffer.router(rows, code) if code else None
        return tuple.__new__(Work, (step, layer, stage, buffer.hidden(rows), router, ticket))

    def _copy_together(self, taken: Members, stage: int, code: int) -> None:
        into = self._gathered[stage]
        width, logits = self._shape.row_bytes, router_row_bytes(self._shape, code)
        start = 0
        for peer, _, count in taken:
            own, stop = peer.buffers[stage], start + count
            into.hidden_bytes[start * width : stop * width] = own.hidden_bytes[: count * width]
            if code:
                into.router_bytes[start * logits : stop * logits] = own.router_bytes[: count * logits]
            start = stop


def _step_of(peer: Peer) -> Step:
    """The step that a peer with a request is in: requests are only read within an announced one, see Peer.advance."""
    assert peer.step is not None
    return peer.step
