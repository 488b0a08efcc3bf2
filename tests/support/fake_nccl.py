"""NCCL and a device as they look from one process without either: bytes go through queues, calls wait."""

from __future__ import annotations

import ctypes
import itertools
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from afd_connectors.errors import ConnectorError
from afd_connectors.transports.nccl.connector import NcclP2p
from afd_connectors.transports.nccl.library import ID_BYTES

WAIT_S = 10.0


@dataclass
class Room:
    """One communicator: a queue per receiving rank."""

    joined: threading.Barrier = field(default_factory=lambda: threading.Barrier(2))
    queues: tuple[queue.Queue[bytes], queue.Queue[bytes]] = field(
        default_factory=lambda: (queue.Queue(), queue.Queue())
    )


class FakeNccl:
    """See Library. A receive waits until the bytes are there or its communicator is aborted by either side.

    groups: sizes of the groups that were issued, over all instances that share `world`.
    """

    def __init__(self, version: str = "9.9.9") -> None:
        self._version = version
        self._rooms: dict[bytes, Room] = {}
        self._comms: dict[int, tuple[Room, int]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._local = threading.local()
        self.aborted: set[int] = set()
        self.groups: list[int] = []

    def version(self) -> str:
        return self._version

    def unique_id(self) -> bytes:
        return next(self._numbers).to_bytes(ID_BYTES, "big")

    def join(self, ident: bytes, rank: int, ranks: int) -> int:
        assert ranks in (1, 2)
        with self._lock:
            room = self._rooms.setdefault(ident, Room())
            comm = next(self._numbers)
            self._comms[comm] = (room, rank)
        if ranks == 2:
            room.joined.wait(WAIT_S)
        return comm

    def send(self, comm: int, peer: int, address: int, count: int, stream: int) -> None:
        self._do(lambda: self._send(comm, peer, address, count))

    def recv(self, comm: int, peer: int, address: int, count: int, stream: int) -> None:
        self._do(lambda: self._recv(comm, address, count))

    def abort(self, comm: int) -> None:
        self.aborted.add(comm)

    def group_start(self) -> None:
        self._local.calls = []

    def group_end(self) -> None:
        calls, self._local.calls = self._local.calls, None
        self.groups.append(len(calls))
        for call in calls:
            call()

    def _do(self, call: Callable[[], None]) -> None:
        calls = getattr(self._local, "calls", None)
        if calls is None:
            call()
        else:
            calls.append(call)

    def _send(self, comm: int, peer: int, address: int, count: int) -> None:
        room, rank = self._comms[comm]
        assert peer == 1 - rank
        room.queues[peer].put(ctypes.string_at(address, count))

    def _recv(self, comm: int, address: int, count: int) -> None:
        room, rank = self._comms[comm]
        for _ in range(int(WAIT_S / 0.01)):
            if comm in self.aborted:
                return  # what an abort lets through is garbage, as on a device
            try:
                data = room.queues[rank].get(timeout=0.01)
            except queue.Empty:
                continue
            assert len(data) == count, f"{count} bytes were to be received, {len(data)} were sent"
            ctypes.memmove(address, data, count)
            return
        raise ConnectorError(f"nothing came within {WAIT_S:g} s")


class FakeDevice:
    """See Device."""

    name = "cpu"

    def bind(self) -> None:
        return

    def stream(self) -> int:
        return 0

    def settle(self, enqueue: Callable[[], None]) -> None:
        enqueue()


class FakeP2p(NcclP2p):
    """nccl-p2p between threads; `library` is what both roles use."""

    devices: ClassVar[frozenset[str]] = frozenset({"cpu"})
    library: ClassVar[FakeNccl] = FakeNccl()

    def means(self) -> tuple[FakeNccl, FakeDevice]:
        return self.library, FakeDevice()
