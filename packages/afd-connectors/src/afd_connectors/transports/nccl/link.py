"""Two communicators between an attention and an FFN rank, one per direction, and their certain end."""

from __future__ import annotations

import logging
import threading
import time

from afd_connectors.deadline import Deadline
from afd_connectors.errors import ConnectorError, PeerLost
from afd_connectors.transports.enqueued.device import Device
from afd_connectors.transports.nccl.library import Library

log = logging.getLogger("afd.connectors")
FFN, ATTENTION = 0, 1  # ranks inside every communicator
ISSUE_S = 1.0


class Issuing:
    """Held by a thread while it calls the library, so that no communicator is freed under it."""

    def __init__(self, library: Library, device: Device) -> None:
        self.library, self.device = library, device
        self.lock = threading.RLock()


class Link:
    """A connected pair. lost: why it is void, None while it is not; nothing is issued on it any more then.

    outward, inward: the communicators for what this side sends and receives; peer: the other side's rank in both.
    """

    def __init__(self, issuing: Issuing, outward: int, inward: int, peer: int) -> None:
        self.lost: str | None = None
        self.since = time.monotonic()
        self._issuing = issuing
        self._outward, self._inward, self._peer = outward, inward, peer
        self._losing = threading.Lock()
        self._aborts: list[threading.Thread] = []

    def send(self, address: int, count: int, stream: int) -> None:
        """Enqueues `count` bytes at a device address; PeerLost on a lost link."""
        with self._issuing.lock:
            self._usable()
            self._issuing.library.send(self._outward, self._peer, address, count, stream)

    def recv(self, address: int, count: int, stream: int) -> None:
        """Enqueues the receipt of `count` bytes; PeerLost on a lost link."""
        with self._issuing.lock:
            self._usable()
            self._issuing.library.recv(self._inward, self._peer, address, count, stream)

    def lose(self, reason: str) -> None:
        """Ends everything that the device does on this link, on threads of its own; the first reason stays.

        `lost` is set before anything is ended: whoever sees results that an abort let through sees it too.
        """
        with self._losing:
            if self.lost is not None:
                return
            self.lost, self.since = reason, time.monotonic()
            for comm in (self._outward, self._inward):
                # One thread each: an abort returns only once no graph holds the communicator any more.
                thread = threading.Thread(target=self._abort, args=(comm,), name="afd-abort", daemon=True)
                thread.start()
                self._aborts.append(thread)

    def ended(self, limit_s: float) -> bool:
        """Waits at most `limit_s` seconds until nothing of a lost link is left on the device; whether that is so."""
        limit = Deadline(limit_s)
        with self._losing:
            aborts = tuple(self._aborts)
        for thread in aborts:
            thread.join(limit.remaining())
        return not any(thread.is_alive() for thread in aborts)

    def free(self) -> None:
        """See Link; what is lost is ended on threads of its own."""

    def landing(self, stage: int, rows: int) -> None:  # noqa: ARG002
        """See Link; rows are received where the caller says."""
        return

    def _abort(self, comm: int) -> None:
        # A call that has begun may end first; one that hangs in the library is what the abort is to free.
        if self._issuing.lock.acquire(timeout=ISSUE_S):
            self._issuing.lock.release()
        try:
            self._issuing.device.bind()
            self._issuing.library.abort(comm)
        except ConnectorError as error:
            log.warning("a communicator could not be ended: %s", error)

    def _usable(self) -> None:
        if self.lost is not None:
            raise PeerLost(self.lost)
