"""The attention end of loopback: puts copies of its rows into the hubs of its FFN peers."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from afd_connectors.checks import check_begin, check_recv, check_send, router_code
from afd_connectors.deadline import Deadline
from afd_connectors.errors import ConnectorError, DeadlineExceeded, HandshakeRefused, PeerLost
from afd_connectors.event import Event, Phase
from afd_connectors.facts import Facts
from afd_connectors.gather import Ready
from afd_connectors.layout import Layout
from afd_connectors.place import Place
from afd_connectors.ports import AttentionPort, PeerStatus
from afd_connectors.settings import Settings
from afd_connectors.shape import Shape
from afd_connectors.step import Step
from afd_connectors.transports.loopback_ffn import HUBS, HUBS_CHANGED, Address, LoopbackFFNPort, Seat
from afd_connectors.waiting import Waiting

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("afd.connectors")


class LoopbackAttentionPort(AttentionPort):
    """See AttentionPort."""

    def __init__(self, layout: Layout, shape: Shape, facts: Facts, settings: Settings) -> None:
        self._layout, self._shape, self._facts, self._settings = layout, shape, facts, settings
        self._seats: dict[int, tuple[LoopbackFFNPort, Seat]] = {}
        self._step: Step | None = None
        self._pending: dict[int, int] = {}
        self._closed = threading.Event()
        self._place = Place("loopback", layout, Event(Phase.OPENED, time.monotonic()))
        deadline = Deadline(settings.join_timeout_s)
        try:
            for peer in layout.peers:
                self._seats[peer] = self._join(peer, deadline)
        except ConnectorError:
            self.close()
            raise

    def begin(self, step: Step) -> None:
        """See AttentionPort."""
        self._open_or_raise()
        check_begin(step, self._step, self._shape)
        self._step = step
        self._pending.clear()
        for hub, seat in self._seats.values():
            with hub.changed:
                seat.step = step
                seat.requests.clear()
                seat.replies.clear()
                seat.previous.clear()
                self._note(seat, Phase.ANNOUNCED, step)
                hub.changed.notify_all()

    def send(self, step: Step, layer: int, hidden: Tensor, router: Tensor | None = None, *, stage: int = 0) -> None:
        """See AttentionPort."""
        self._open_or_raise()
        check_send(step, self._step, layer, stage, hidden, router, self._shape, self._pending)
        self._pending[stage] = layer
        code = router_code(router)
        for peer, start, stop in self._layout.split(hidden.shape[0]):
            if start == stop:
                continue
            hub, seat = self._seats[peer]
            with hub.changed:
                ready = Ready(self._layout.rank, stage, layer, seat.previous.get(stage, -1), code, time.monotonic())
                logits = None if router is None else router[start:stop].clone()
                seat.requests[stage] = (ready, hidden[start:stop].clone(), logits)
                self._note(seat, Phase.SENT, step, layer, stage)
                hub.changed.notify_all()

    def recv(self, step: Step, layer: int, out: Tensor, *, stage: int = 0) -> None:
        """See AttentionPort."""
        self._open_or_raise()
        check_recv(step, layer, stage, out, self._shape, self._pending)
        for peer, start, stop in self._layout.split(out.shape[0]):
            if start < stop:
                out[start:stop].copy_(self._reply(peer, step, layer, stage))
        del self._pending[stage]

    def peers(self) -> tuple[PeerStatus, ...]:
        """See Port."""
        here = f"{self._settings.host}:{self._settings.port}"
        return tuple(
            PeerStatus(peer, "lost" if hub.closed else "connected", seat.since, here, hub.event)
            for peer, (hub, seat) in sorted(self._seats.items())
        )

    def close(self) -> None:
        """See Port."""
        self._closed.set()
        for hub, seat in self._seats.values():
            hub.leave_seat(seat)

    def _join(self, peer: int, deadline: Deadline) -> tuple[LoopbackFFNPort, Seat]:
        address: Address = (self._settings.host, self._settings.port, peer)
        waiting = Waiting(log, self._layout.rank, peer, f"{address[0]}:{address[1]}", deadline)
        while True:
            waiting.tell()
            with HUBS_CHANGED:
                hub = HUBS.get(address)
                if hub is None:
                    HUBS_CHANGED.wait(deadline.slice(1.0))
                    hub = HUBS.get(address)
            if hub is not None:
                try:
                    return hub, hub.take_seat(self._layout.rank, self._facts, self._settings.secret)
                except HandshakeRefused as refused:
                    if refused.final:
                        raise
                    waiting.reason = refused.message
                    time.sleep(deadline.slice(0.05))
            if deadline.passed:
                raise self._place.error(DeadlineExceeded, waiting.verdict(), peer)

    def _reply(self, peer: int, step: Step, layer: int, stage: int) -> Tensor:
        hub, seat = self._seats[peer]
        deadline = Deadline(self._settings.timeout_s)
        with hub.changed:
            while stage not in seat.replies:
                kind: type[ConnectorError] | None = None
                if self._closed.is_set():
                    kind, why = ConnectorError, "the port was closed while it waited for an answer"
                elif hub.closed:
                    kind, why = PeerLost, "the FFN closed its port before it answered"
                elif deadline.passed:
                    kind, why = DeadlineExceeded, f"no answer came within {deadline.seconds:g} s"
                if kind is not None:
                    raise self._place.error(kind, why, peer, hub.event, step=step.seq, layer=layer, stage=stage)
                hub.changed.wait(deadline.remaining())
            self._note(seat, Phase.RECEIVED, step, layer, stage)
            return seat.replies.pop(stage)

    def _note(self, seat: Seat, phase: Phase, step: Step, layer: int = -1, stage: int = -1) -> None:
        self._place.event = seat.event = Event(phase, time.monotonic(), step.seq, layer, stage)

    def _open_or_raise(self) -> None:
        if self._closed.is_set():
            raise ConnectorError(f"loopback attention rank {self._layout.rank} is closed; open it again to use it.")
