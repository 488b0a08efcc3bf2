"""The FFN end of tcp: one thread serves every attention rank, computing together what stands at one layer."""

from __future__ import annotations

import math
import select
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from afd_connectors.address import ffn_address
from afd_connectors.awake import AWAKE_S, awake
from afd_connectors.errors import ConnectorError, FrameError, PeerLost
from afd_connectors.event import Event, Phase
from afd_connectors.facts import Facts
from afd_connectors.gather import NOTHING, Choice, Ready, choose
from afd_connectors.handshake import Identity
from afd_connectors.layout import Layout
from afd_connectors.listener import Arrival, Listener
from afd_connectors.ports import FFNPort, PeerStatus, Work
from afd_connectors.pulse import Pulse
from afd_connectors.settings import Settings
from afd_connectors.shape import Shape
from afd_connectors.transports.tcp_buffers import Buffer, flat, raw, router_row_bytes, torch_dtype
from afd_connectors.transports.tcp_frame import Head, Way
from afd_connectors.transports.tcp_guests import Guests
from afd_connectors.transports.tcp_peer import Peer

if TYPE_CHECKING:
    from torch import Tensor

SWEEP_S = 0.5
_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR


@dataclass(frozen=True, slots=True)
class Ticket:
    """Whom a work answers: (peer, step seq, rows) in the order of the rows."""

    members: tuple[tuple[Peer, int, int], ...]
    rows: int


class TcpFFNPort(FFNPort):
    """See FFNPort; listens from the moment that it exists."""

    def __init__(self, layout: Layout, shape: Shape, facts: Facts, settings: Settings, gather_s: float) -> None:
        self._layout, self._shape, self._gather_s = layout, shape, gather_s
        self._dtype = torch_dtype(shape.dtype)
        stages, peers = range(shape.stages), layout.peers
        self._slots = {rank: [Buffer(shape, shape.tokens) for _ in stages] for rank in peers}
        self._gathered = [Buffer(shape, shape.tokens * len(peers)) for _ in stages if len(peers) > 1]
        self._lent: dict[int, set[int]] = {rank: set() for rank in peers}
        self._out: dict[int, object] = {}
        self._event = Event(Phase.OPENED, time.monotonic())
        self._using = threading.RLock()
        self._waker, self._wakes = socket.socketpair()
        self._waker.setblocking(False)
        self._poll = select.poll()
        self._doors: dict[int, tuple[Peer, bool]] = {}
        self._served: tuple[Peer, ...] = ()
        self._by_rank: dict[int, Peer] = {}
        self._swept = time.monotonic()
        self._awake_until = 0.0
        self._guests = Guests(layout, settings.timeout_s, self._seat, self._wake)
        self._register()
        address = ffn_address(settings, layout.rank, layout.num_ffn)
        identity = Identity(layout, facts, settings.secret)
        try:
            self._listener = Listener(address, identity, self._guests.admit, self._guests.welcome)
        except ConnectorError:
            self._waker.close()
            self._wakes.close()
            raise
        self._pulse = Pulse(lambda: self._guests.beat(self._event))

    def recv(self, stage: int | None = None, *, wait_s: float) -> Work | None:
        """See FFNPort."""
        with self._using:
            if self._guests.closed:
                raise ConnectorError(f"tcp FFN rank {self._layout.rank} is closed; open it again to receive.")
            until = time.monotonic() + wait_s
            left = max(0.0, wait_s)
            while not self._guests.closed:
                choice = self._choose(stage)
                if choice.members:
                    return self._take(choice.members)
                if left < 0.0:
                    break
                self._look(min(left, SWEEP_S if choice.wait_s is None else choice.wait_s))
                left = until - time.monotonic()
            return None

    def send(self, work: Work, out: Tensor) -> None:
        """See FFNPort."""
        with self._using:
            ticket = work.ticket
            if not isinstance(ticket, Ticket) or self._out.get(work.stage) is not ticket:
                raise ValueError(f"send needs a work of this port that has no answer yet, found {work.ticket!r}.")
            expected = (ticket.rows, self._shape.hidden)
            if out.shape != expected or out.dtype is not self._dtype:
                raise ValueError(
                    f"the answer must be {list(expected)} {self._shape.dtype}, found {list(out.shape)} {out.dtype}."
                )
            answer = flat(out)
            rows, width, start = raw(answer), self._shape.row_bytes, 0
            for peer, seq, count in ticket.members:
                stop = start + count * width
                if not peer.dropped:
                    head = Head(Way.REPLY, seq, work.layer, work.stage, count)
                    try:
                        peer.reply(head, rows[start:stop])
                    except PeerLost as error:
                        self._guests.drop(peer, error.message)
                self._lent[peer.rank].discard(work.stage)
                start = stop
            del self._out[work.stage]
            self._awake_until = time.monotonic() + AWAKE_S
            self._event = Event(Phase.ANSWERED, time.monotonic(), work.step.seq, work.layer, work.stage)

    def peers(self) -> tuple[PeerStatus, ...]:
        """See Port."""
        return self._guests.statuses()

    def close(self) -> None:
        """See Port."""
        if self._guests.closed:
            return
        self._guests.closed = True
        self._wake()
        self._listener.close()
        self._pulse.close()
        for peer in self._guests:
            peer.channel.bye()
            peer.hang_up()
        if self._using.acquire(timeout=5.0):
            for peer in (*self._guests, *self._guests.take_replaced()):
                peer.free()
            self._waker.close()
            self._wakes.close()
            self._using.release()

    def _seat(self, arrival: Arrival) -> Peer:
        return Peer(arrival, self._layout, self._shape, self._slots[arrival.rank], self._lent[arrival.rank])

    def _wake(self) -> None:
        try:
            self._waker.send(b"!")
        except OSError:  # full: the thread is about to wake anyway; closed: there is nothing to wake
            return

    def _choose(self, stage: int | None) -> Choice:
        if len(self._served) == 1:  # nobody to gather with
            (only,) = self._served
            if not only.ready or only.dropped:
                return NOTHING
        ready: list[Ready] = []
        for peer in self._served:
            for found in peer.ready.values() if not peer.dropped else ():
                if found.stage not in self._out and (stage is None or found.stage == stage):
                    ready.append(found)
        if not ready:
            return NOTHING
        if len(ready) == 1 and len(self._served) == 1:
            return Choice((ready[0],))
        underway = [u for peer in self._served if not peer.dropped for u in peer.underway()]
        return choose(ready, underway, time.monotonic(), self._gather_s)

    def _look(self, wait_s: float) -> None:
        """Waits for bytes and takes them in; drops peers that misbehave."""
        if self._guests.changed:
            self._register()
        soon = awake(lambda: self._poll.poll(0), self._awake_until)
        for fd, events in soon or self._poll.poll(math.ceil(wait_s * 1000)):
            door = self._doors.get(fd)
            if door is None:
                self._wakes.recv(4096)
                self._swept = 0.0
            else:
                self._serve(*door, events)
        for peer in self._served:
            if not peer.dropped and (peer.blocked or peer.answering):
                self._serve(peer, True, select.POLLIN)
        now = time.monotonic()
        if now - self._swept >= SWEEP_S:
            self._swept = now
            self._guests.sweep()

    def _serve(self, peer: Peer, data: bool, events: int) -> None:
        """One peer's bytes, of its data or its control connection; drops it when they are not what is
        allowed.
        """
        if peer.dropped:
            return
        try:
            if not data:
                peer.channel.drain()
                if peer.channel.lost is not None:
                    raise PeerLost(peer.channel.lost)
                return
            if events & select.POLLOUT or peer.answering:
                peer.push()
            if events & _READABLE:
                peer.advance()
            # Only what can be used is polled for, or the poll would return at once for ever.
            if peer.interest() != peer.polled:
                peer.polled = peer.interest()
                self._poll.modify(peer.data, peer.polled)
        except (PeerLost, FrameError) as error:
            self._guests.drop(peer, error.message, offence=isinstance(error, FrameError))

    def _register(self) -> None:
        """Builds the poll anew after peers came or went, and frees the sockets of those that went."""
        for gone in self._guests.take_replaced():
            gone.free()
        self._doors = {}
        self._poll = select.poll()
        self._poll.register(self._wakes, select.POLLIN)
        # The listener's threads seat newcomers at any time; a choice must not change before it is taken.
        self._served = tuple(self._guests)
        self._by_rank = {peer.rank: peer for peer in self._served}
        for peer in self._served:
            for sock in (peer.channel.sock, peer.data):
                self._doors[sock.fileno()] = (peer, sock is peer.data)
                self._poll.register(sock, select.POLLIN)
            peer.polled = select.POLLIN

    def _take(self, members: tuple[Ready, ...]) -> Work:
        first = members[0]
        stage, code = first.stage, first.router
        lead = self._by_rank[first.peer]
        if len(members) == 1:
            taken: tuple[tuple[Peer, int, int], ...] = ((lead, seq_of(lead), lead.rows[stage]),)
            rows, buffer = lead.rows[stage], lead.buffers[stage]
            lead.lent.add(stage)
        else:
            peers = [self._by_rank[member.peer] for member in members]
            taken = tuple((peer, seq_of(peer), peer.rows[stage]) for peer in peers)
            rows, buffer = sum(count for _, _, count in taken), self._gathered[stage]
            self._copy_together(taken, stage, code)
        for peer, _, _ in taken:
            del peer.ready[stage]
        step = lead.step
        assert step is not None  # see Peer.advance: requests are only read within an announced step
        self._event = Event(Phase.COMPUTED, time.monotonic(), step.seq, first.layer, stage)
        ticket = Ticket(taken, rows)
        self._out[stage] = ticket
        return Work(step, first.layer, stage, buffer.hidden(rows), buffer.router(rows, code), ticket)

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


def seq_of(peer: Peer) -> int:
    """The seq of the step that a peer with a request is in."""
    assert peer.step is not None
    return peer.step.seq
