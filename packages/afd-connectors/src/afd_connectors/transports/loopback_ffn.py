"""The FFN end of loopback: a hub that attention ports of the same process find by address."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from afd_connectors.agreement import refusal
from afd_connectors.checks import dtype_name
from afd_connectors.deadline import Deadline
from afd_connectors.errors import ConnectorError, HandshakeRefused
from afd_connectors.event import Event, Phase
from afd_connectors.facts import Facts
from afd_connectors.gather import Ready, Underway, choose
from afd_connectors.layout import Layout
from afd_connectors.ports import FFNPort, PeerStatus, Work
from afd_connectors.settings import Settings
from afd_connectors.shape import Shape
from afd_connectors.step import Step

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("afd.connectors")
Address = tuple[str, int, int]
HUBS: dict[Address, LoopbackFFNPort] = {}
HUBS_CHANGED = threading.Condition()


@dataclass(slots=True)
class Seat:
    """One attention peer as the hub sees it; guarded by the hub's condition."""

    rank: int
    since: float
    step: Step | None = None
    requests: dict[int, tuple[Ready, Tensor, Tensor | None]] = field(default_factory=dict)
    replies: dict[int, Tensor] = field(default_factory=dict)
    previous: dict[int, int] = field(default_factory=dict)
    event: Event | None = None


@dataclass(frozen=True, slots=True)
class Ticket:
    """Whom a work answers: (seat, step seq, rows) in the order of the rows."""

    members: tuple[tuple[Seat, int, int], ...]


class LoopbackFFNPort(FFNPort):
    """See FFNPort; `changed` guards all state and is notified on every change."""

    def __init__(self, layout: Layout, shape: Shape, facts: Facts, settings: Settings) -> None:
        self.layout, self.shape, self.facts, self.settings = layout, shape, facts, settings
        self.changed = threading.Condition()
        self.seats: dict[int, Seat] = {}
        self.closed = False
        self.event = Event(Phase.OPENED, time.monotonic())
        self._out: dict[int, Ticket] = {}
        self._address: Address = (settings.host, settings.port, layout.rank)
        with HUBS_CHANGED:
            if self._address in HUBS:
                raise ConnectorError(
                    f"FFN rank {layout.rank} found the address {settings.host}:{settings.port} taken; "
                    "close the other port first."
                )
            HUBS[self._address] = self
            HUBS_CHANGED.notify_all()

    def take_seat(self, rank: int, facts: Facts, secret: str | None) -> Seat:
        """Admits an attention rank, or raises HandshakeRefused and logs why."""
        reason = refusal(self.facts, facts, self.settings.secret, secret, self.layout.rank, rank)
        with self.changed:
            busy = rank in self.seats
            if reason is None and not busy:
                self.seats[rank] = Seat(rank, time.monotonic())
                return self.seats[rank]
        refused = HandshakeRefused(reason or f"attention rank {rank} is already connected to FFN {self.layout.rank}.")
        refused.final = not busy
        log.warning("loopback: FFN rank %d refused attention rank %d: %s", self.layout.rank, rank, refused.message)
        raise refused

    def leave_seat(self, seat: Seat) -> None:
        """Frees an attention rank's place for its replacement."""
        with self.changed:
            if self.seats.get(seat.rank) is seat:
                del self.seats[seat.rank]
            self.changed.notify_all()

    def recv(self, stage: int | None = None, *, wait_s: float) -> Work | None:
        """See FFNPort."""
        deadline = Deadline(wait_s)
        with self.changed:
            if self.closed:
                raise ConnectorError(f"loopback FFN rank {self.layout.rank} is closed; open it again to receive.")
            while not self.closed:
                ready = [r for s in self.seats.values() for r, _, _ in s.requests.values() if self._wanted(r, stage)]
                choice = choose(ready, self._underway(), time.monotonic())
                if choice.members:
                    return self._take(choice.members)
                if deadline.passed:
                    return None
                self.changed.wait(deadline.slice(60.0 if choice.wait_s is None else choice.wait_s))
            return None

    def send(self, work: Work, out: Tensor) -> None:
        """See FFNPort."""
        ticket = work.ticket
        with self.changed:
            if not isinstance(ticket, Ticket) or self._out.get(work.stage) is not ticket:
                raise ValueError(f"send needs a work of this port that has no answer yet, found {work.ticket!r}.")
            rows = sum(count for _, _, count in ticket.members)
            if tuple(out.shape) != (rows, self.shape.hidden) or dtype_name(out) != self.shape.dtype:
                raise ValueError(
                    f"the answer must be [{rows}, {self.shape.hidden}] {self.shape.dtype}, "
                    f"found {list(out.shape)} {dtype_name(out)}."
                )
            del self._out[work.stage]
            start = 0
            for seat, seq, count in ticket.members:
                if seat.step is not None and seat.step.seq == seq:
                    seat.replies[work.stage] = out[start : start + count].clone()
                start += count
            self.event = Event(Phase.ANSWERED, time.monotonic(), work.step.seq, work.layer, work.stage)
            self.changed.notify_all()

    def peers(self) -> tuple[PeerStatus, ...]:
        """See Port."""
        with self.changed:
            seats = dict(self.seats)
        here = f"{self.settings.host}:{self.settings.port}"
        opened = 0.0
        return tuple(
            PeerStatus(rank, "connected", seats[rank].since, here, seats[rank].event)
            if rank in seats
            else PeerStatus(rank, "waiting", opened, here, None)
            for rank in self.layout.peers
        )

    def close(self) -> None:
        """See Port."""
        with HUBS_CHANGED:
            if HUBS.get(self._address) is self:
                del HUBS[self._address]
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def _wanted(self, ready: Ready, stage: int | None) -> bool:
        return ready.stage not in self._out and (stage is None or ready.stage == stage)

    def _underway(self) -> list[Underway]:
        return [
            Underway(seat.rank, stage, seat.previous.get(stage, -1))
            for seat in self.seats.values()
            if seat.step is not None
            for stage, rows in enumerate(seat.step.tokens)
            if stage not in seat.requests and self.layout.share(rows) > 0
        ]

    def _take(self, members: tuple[Ready, ...]) -> Work:
        taken = [(self.seats[m.peer], *self.seats[m.peer].requests.pop(m.stage)) for m in members]
        first, step = members[0], taken[0][0].step
        assert step is not None  # a seat holds requests only within a step
        for seat, ready, _, _ in taken:
            seat.previous[ready.stage] = ready.layer
        hidden = taken[0][2] if len(taken) == 1 else torch.cat([rows for _, _, rows, _ in taken])
        logits = [router for _, _, _, router in taken if router is not None]
        router = None if not logits else logits[0] if len(logits) == 1 else torch.cat(logits)
        self.event = Event(Phase.COMPUTED, time.monotonic(), step.seq, first.layer, first.stage)
        ticket = Ticket(tuple((seat, seat.step.seq, rows.shape[0]) for seat, _, rows, _ in taken if seat.step))
        self._out[first.stage] = ticket
        return Work(step, first.layer, first.stage, hidden, router, ticket)
