"""How an FFN rank's serving thread waits for all its peers at once and takes in what they announce."""

from __future__ import annotations

import math
import select
import time

from afd_connectors.awake import awake
from afd_connectors.errors import ConnectorError
from afd_connectors.transports.enqueued.peer import Peer
from afd_connectors.transports.paired.guests import Guests
from afd_connectors.transports.wakeable import Wakeable


class Hearing(Wakeable):
    """Used by one thread, woken by any.

    guests: who is connected, to be set before `hear`; by_rank: those of them that were there at the last `hear`.
    """

    guests: Guests[Peer]

    def __init__(self) -> None:
        super().__init__()
        self.by_rank: dict[int, Peer] = {}
        self._poll = select.poll()
        self._poll.register(self._wakes, select.POLLIN)

    def hear(self) -> None:
        """Takes in what all peers announced; drops those that are gone or break the protocol."""
        if self.guests.changed:
            self._register()
        for peer in self.by_rank.values():
            self._drain(peer)

    def _drain(self, peer: Peer) -> None:
        if peer.dropped:
            return
        try:
            peer.channel.drain()
        except ConnectorError as error:
            self.guests.drop(peer, error.message, offence=True)
            return
        if peer.channel.lost is not None:
            self.guests.drop(peer, peer.channel.lost)

    def logits(self, peer: Peer, layer: int, limit_s: float) -> int | None:
        """The dtype code of a layer's router logits, as soon as `peer` has told it; None when it does not in time.

        In the middle of a step, which may be under capture: nothing that peers left behind is given back.
        """
        if layer in peer.logits:
            return peer.logits[layer]
        until = time.monotonic() + limit_s
        poll = select.poll()
        for sock in (self._wakes, peer.channel.sock):
            poll.register(sock, select.POLLIN)
        while True:
            self._drain(peer)
            left = until - time.monotonic()
            if layer in peer.logits or peer.dropped or self.guests.closed or left <= 0.0:
                return peer.logits.get(layer)
            self._wait(poll, left)

    def wait(self, wait_s: float) -> None:
        """Until a peer says something, or another thread wakes this one."""
        self._wait(self._poll, wait_s)

    def _wait(self, poll: select.poll, wait_s: float) -> None:
        now = time.monotonic()
        events = awake(lambda: poll.poll(0), min(self._awake_until, now + wait_s))
        left = now + wait_s - time.monotonic()
        for fd, _ in events or poll.poll(math.ceil(1000 * max(0.0, left))):
            if fd == self._wakes.fileno():
                self._wakes.recv(4096)

    def _register(self) -> None:
        """Builds the poll anew after peers came or went, and frees the sockets of those that went."""
        for gone in self.guests.take_replaced():
            gone.free()
        self.by_rank = {peer.rank: peer for peer in self.guests}
        self._poll = select.poll()
        self._poll.register(self._wakes, select.POLLIN)
        for peer in self.by_rank.values():
            self._poll.register(peer.channel.sock, select.POLLIN)
