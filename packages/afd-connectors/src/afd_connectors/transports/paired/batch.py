"""What an FFN rank computes at once: the rows of every attention rank that stands at one layer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from afd_connectors.gather import NOTHING, Choice, Ready, choose
from afd_connectors.layout import Layout
from afd_connectors.ports import Work
from afd_connectors.shape import Shape
from afd_connectors.transports.paired.buffers import Buffer, router_row_bytes
from afd_connectors.transports.paired.peer import Peer


class Ticket(NamedTuple):
    """Whom a work answers: (peer, step seq, rows) in the order of the rows; a tuple as Work is."""

    members: tuple[tuple[Peer, int, int], ...]
    rows: int


class Batches:
    """Chooses and puts together works; `out` holds the ticket of each stage's work that has no answer yet."""

    def __init__(self, layout: Layout, shape: Shape, gather_s: float) -> None:
        self.out: dict[int, Ticket] = {}
        self._shape, self._gather_s = shape, gather_s
        peers, stages = len(layout.peers), range(shape.stages)
        self._gathered = [Buffer(shape, shape.tokens * peers) for _ in stages if peers > 1]

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
        if len(ready) == 1 and len(served) == 1:  # nobody to gather with
            return Choice(tuple(ready))
        underway = [u for peer in served if not peer.dropped for u in peer.underway()]
        return choose(ready, underway, time.monotonic(), self._gather_s)

    def take(self, served: Sequence[Peer], members: tuple[Ready, ...]) -> Work:
        """The work of a choice among the same peers."""
        rank, stage, layer, _, code, _ = members[0]
        lead = served[0] if len(served) == 1 else next(peer for peer in served if peer.rank == rank)
        step = lead.step
        assert step is not None  # see Peer.advance: requests are only read within an announced step
        if len(members) == 1:
            rows, buffer = lead.rows[stage], lead.buffers[stage]
            taken: tuple[tuple[Peer, int, int], ...] = ((lead, step.seq, rows),)
            lead.lent.add(stage)
            del lead.ready[stage]
        else:
            by_rank = {peer.rank: peer for peer in served}
            peers = [by_rank[member.peer] for member in members]
            taken = tuple((peer, _seq_of(peer), peer.rows[stage]) for peer in peers)
            rows, buffer = sum(count for _, _, count in taken), self._gathered[stage]
            self._copy_together(taken, stage, code)
            for peer in peers:
                del peer.ready[stage]
        ticket = self.out[stage] = Ticket(taken, rows)
        return Work(step, layer, stage, buffer.hidden(rows), buffer.router(rows, code) if code else None, ticket)

    def _copy_together(self, taken: tuple[tuple[Peer, int, int], ...], stage: int, code: int) -> None:
        into = self._gathered[stage]
        width, logits = self._shape.row_bytes, router_row_bytes(self._shape, code)
        start = 0
        for peer, _, count in taken:
            own, stop = peer.buffers[stage], start + count
            into.hidden_bytes[start * width : stop * width] = own.hidden_bytes[: count * width]
            if code:
                into.router_bytes[start * logits : stop * logits] = own.router_bytes[: count * logits]
            start = stop


def _seq_of(peer: Peer) -> int:
    """The seq of the step that a peer with a request is in."""
    assert peer.step is not None
    return peer.step.seq
