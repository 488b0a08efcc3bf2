"""How an FFN rank's serving thread waits for all its peers at once and takes in what they send."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Sequence

from afd_connectors.awake import LOOKS_IN_MEMORY, awake
from afd_connectors.errors import FrameError, PeerLost
from afd_connectors.transports.paired.guests import Guests
from afd_connectors.transports.paired.peer import Peer
from afd_connectors.transports.wakeable import Wakeable

SWEEP_S = 0.5
_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR


class Watch(Wakeable):
    """Used by one thread, woken by any.

    guests: who is connected, to be set before `look`; served: those of them that were there at the last `look`;
    in_memory: whether requests arrive without a poll telling; begun: the only peer announced a step, until the user of
    this resets it.
    """

    guests: Guests[Peer]

    def __init__(self, *, in_memory: bool) -> None:
        super().__init__()
        self.served: tuple[Peer, ...] = ()
        self._in_memory = in_memory
        self.begun = False
        self._poll = select.poll()
        self._poll.register(self._wakes, select.POLLIN)
        self._doors: dict[int, tuple[Peer, bool]] = {}
        self._swept = time.monotonic()

    def look(self, wait_s: float) -> None:
        """Waits for requests and takes them in; drops peers that misbehave."""
        if self.guests.changed:
            self._register()
        now = time.monotonic()
        if now - self._swept >= SWEEP_S:  # before the wait: once a request is here, the clock has been asked enough
            self._swept = now
            self.guests.sweep()
        until = min(self._awake_until, now + wait_s)
        if not (self._in_memory and awake(self._arrived, until, LOOKS_IN_MEMORY)):
            self._look_at_all(now + wait_s, until)
        elif len(self.served) == 1:  # its request has just been taken in
            return
        self._go_on_with_all()

    def _look_at_all(self, until: float, awake_until: float) -> None:
        """Takes in what the poll tells until then."""
        for fd, events in self._events(until, awake_until):
            door = self._doors.get(fd)
            if door is None:
                self._wakes.recv(4096)
                self._swept = 0.0
            else:
                self._serve(*door, events)

    def _go_on_with_all(self) -> None:
        """Also where another peer's requests come so fast that the poll is never asked."""
        for peer in self.served:
            if (peer.blocked or peer.answering) and not peer.dropped:
                self._go_on(peer)

    def _events(self, until: float, awake_until: float) -> Sequence[tuple[int, int]]:
        """What the poll tells until then; nothing also when something was taken in from memory."""
        if not self._in_memory:
            return awake(lambda: self._poll.poll(0), awake_until) or self._poll.poll(self._left_ms(until))
        for peer in self.served:
            peer.doze(True)
        events = () if self._arrived() else self._poll.poll(self._left_ms(until))
        for peer in self.served:
            peer.doze(False)
        return events

    @staticmethod
    def _left_ms(until: float) -> int:
        return max(0, math.ceil(1000 * (until - time.monotonic())))

    def _arrived(self) -> bool:
        """Takes in what arrived in memory; whether anything did, or somebody came or went."""
        found = False
        for peer in self.served:
            if peer.arrived and not peer.dropped:
                self._take_in(peer)
                found = True
        return found or self.guests.changed

    def _serve(self, peer: Peer, data: bool, events: int) -> None:
        """What the poll told of one peer's data or control connection; drops it when that is not allowed."""
        if peer.dropped:
            return
        try:
            if not data:
                peer.channel.drain()
                self._note_step(peer)
                if peer.channel.lost is not None:
                    raise PeerLost(peer.channel.lost)
                return
            if events & select.POLLOUT:
                peer.push()
            if events & _READABLE:
                peer.hear()
                self._note_step(peer)
            self._attend(peer)
        except (PeerLost, FrameError) as error:
            self.guests.drop(peer, error.message, offence=isinstance(error, FrameError))

    def _take_in(self, peer: Peer) -> None:
        """A request that arrived in memory."""
        try:
            peer.advance()
            self._note_step(peer)
        except (PeerLost, FrameError) as error:
            self.guests.drop(peer, error.message, offence=isinstance(error, FrameError))

    def _note_step(self, peer: Peer) -> None:
        if peer.unnoted:
            peer.unnoted = False
            self.begun = len(self.served) == 1  # where there are others, one of their requests may be near too
            self.stay_awake()  # its first request is near

    def _go_on(self, peer: Peer) -> None:
        """What no poll tells: a request that waited for this side, and answers that are left."""
        try:
            if peer.answering:
                peer.push()
            peer.advance()
            self._attend(peer)
        except (PeerLost, FrameError) as error:
            self.guests.drop(peer, error.message, offence=isinstance(error, FrameError))

    def _attend(self, peer: Peer) -> None:
        # Only what can be used is polled for, or the poll would return at once for ever.
        if peer.interest() != peer.polled:
            peer.polled = peer.interest()
            self._poll.modify(peer.data, peer.polled)

    def _register(self) -> None:
        """Builds the poll anew after peers came or went, and frees the sockets of those that went."""
        for gone in self.guests.take_replaced():
            gone.free()
        self._doors = {}
        self._poll = select.poll()
        self._poll.register(self._wakes, select.POLLIN)
        # The listener's threads seat newcomers at any time; a choice must not change before it is taken.
        self.served = tuple(self.guests)
        for peer in self.served:
            for sock in (peer.channel.sock, peer.data):
                self._doors[sock.fileno()] = (peer, sock is peer.data)
                self._poll.register(sock, select.POLLIN)
            peer.polled = select.POLLIN
