"""Which attention ranks an FFN rank serves just now: lets them in, replaces dead ones, shows life to all."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from afd_connectors.channel import Channel
from afd_connectors.errors import ConnectorError
from afd_connectors.event import Event
from afd_connectors.layout import Layout
from afd_connectors.listener import Arrival
from afd_connectors.ports import PeerStatus

log = logging.getLogger("afd.connectors")


class Guest(Protocol):
    """What is asked of an attention rank that is served, whatever carries its rows; see Peer."""

    rank: int
    address: str
    channel: Channel
    since: float
    dropped: bool

    def midway(self) -> bool:
        """Whether it owes another request of its step."""

    def blocked_s(self) -> float:
        """Seconds that a request has waited for its announcement."""

    def hang_up(self) -> None:
        """Ends its connections for every thread."""

    def free(self) -> None:
        """Closes its sockets; only once no other thread reads them."""


P = TypeVar("P", bound=Guest)


class Guests(Generic[P]):
    """The connected peers by rank. `changed` tells the serving thread, which alone frees sockets, to look."""

    def __init__(
        self, layout: Layout, timeout_s: float, seat: Callable[[Arrival], P], wake: Callable[[], None]
    ) -> None:
        self._layout, self._timeout_s, self._seat, self._wake = layout, timeout_s, seat, wake
        self._lock = threading.Lock()
        self._here: dict[int, P] = {}
        self._left: dict[int, tuple[float, str, Event | None]] = {}
        self._opened = time.monotonic()
        self._replaced: list[P] = []
        self.changed = False
        self.closed = False

    def __iter__(self) -> Iterator[P]:
        return iter(tuple(self._here.values()))

    def __len__(self) -> int:
        return len(self._here)

    def admit(self, rank: int) -> str | None:
        """Why a second connection of a rank is refused: the first one lives. None when there is room."""
        with self._lock:
            return self._occupied(rank)

    def welcome(self, arrival: Arrival) -> str | None:
        """Seats an arrival, in the place of a dead predecessor if there is one; ConnectorError when it cannot be."""
        peer = self._seat(arrival)  # may take a moment, so nobody else waits for it
        with self._lock:
            reason = f"FFN rank {self._layout.rank} is closing" if self.closed else self._occupied(arrival.rank)
            if reason is not None:
                peer.hang_up()
                peer.free()
                return reason
            old = self._here.get(arrival.rank)
            if old is not None:
                old.hang_up()
                self._replaced.append(old)
            self._here[arrival.rank] = peer
            self.changed = True
        log.info("FFN rank %d serves attention rank %d from %s", self._layout.rank, arrival.rank, arrival.address)
        self._wake()
        return None

    def _occupied(self, rank: int) -> str | None:
        peer = self._here.get(rank)
        if peer is None or peer.dropped:
            return None
        try:
            peer.channel.drain()
        except ConnectorError as error:
            peer.channel.lost = error.message
        if peer.channel.gone() or peer.channel.silent_s() > self._timeout_s:
            return None
        return (
            f"attention rank {rank} is already served from {peer.address}; stop the server that holds it "
            "or give this one another rank."
        )

    def take_replaced(self) -> list[P]:
        """Predecessors whose sockets the serving thread is to free."""
        with self._lock:
            self.changed = False
            replaced, self._replaced = self._replaced, []
            return replaced

    def drop(self, peer: P, reason: str, *, offence: bool = False) -> None:
        """Ends serving a peer and says why; the next call of the serving thread frees its sockets."""
        reason = peer.channel.last_words(reason)
        with self._lock:
            if peer.dropped:
                return
            peer.hang_up()
            self._replaced.append(peer)
            self.changed = True
            if self._here.get(peer.rank) is peer:
                del self._here[peer.rank]
                self._left[peer.rank] = (time.monotonic(), peer.address, peer.channel.event)
        level = logging.WARNING if offence or peer.channel.offended or peer.midway() else logging.INFO
        log.log(
            level,
            "FFN rank %d stops serving attention rank %d at %s: %s",
            self._layout.rank,
            peer.rank,
            peer.address,
            reason.rstrip("."),
        )

    def sweep(self) -> None:
        """Drops peers that are gone, broke the protocol, or are silent in the middle of a step."""
        for peer in self:
            try:
                peer.channel.drain()
            except ConnectorError as error:
                peer.channel.lost = error.message
            silent = peer.channel.silent_s()
            if peer.channel.lost is not None:
                self.drop(peer, peer.channel.lost)
            elif silent > self._timeout_s and peer.midway():
                self.drop(peer, f"it is silent for {silent:.1f} s in the middle of a step")
            elif peer.blocked_s() > self._timeout_s:
                self.drop(peer, "it sent a request of a step that it did not announce", offence=True)

    def beat(self, event: Event) -> None:
        """Shows life to every peer; runs on the pulse's thread."""
        for peer in self:
            try:
                peer.channel.drain()
                peer.channel.heartbeat(event)
            except ConnectorError as error:
                peer.channel.lost = error.message
            if peer.channel.lost is not None:
                self._wake()

    def dismiss(self) -> None:
        """Says goodbye to all and ends their connections; nobody is let in any more once `closed` is set."""
        for peer in self:
            peer.channel.bye()
            peer.hang_up()

    def free(self) -> None:
        """Gives the descriptors of all back, of those that were replaced too; only on the serving thread or after."""
        for peer in (*self, *self.take_replaced()):
            peer.free()

    def statuses(self) -> tuple[PeerStatus, ...]:
        """See Port.peers."""
        with self._lock:
            here, left = dict(self._here), dict(self._left)
        found = []
        for rank in self._layout.peers:
            if rank in here:
                peer = here[rank]
                found.append(PeerStatus(rank, "connected", peer.since, peer.address, peer.channel.event))
            elif rank in left:
                since, address, event = left[rank]
                found.append(PeerStatus(rank, "lost", since, address, event))
            else:
                found.append(PeerStatus(rank, "waiting", self._opened, "", None))
        return tuple(found)
