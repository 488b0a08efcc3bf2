"""Memory that the workers of a server write their standing into and its API server reads, since a worker that waits
for an FFN rank answers no call.

The memory has no name in any file system, so that nothing of it is left however the processes end. The API server
makes it before it starts its workers, which find it through the environment.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import struct
import zlib
from typing import Final

from afd_workers.health.standing import Standing, Status

log = logging.getLogger("afd.workers")

VARIABLE: Final = "AFD_BOARD"
MOST_PEERS: Final = 32  # that one record names
_CHECKED: Final = struct.Struct("<I")
_RECORD: Final = struct.Struct(f"<Bd{MOST_PEERS}i")
_SLOT: Final = _CHECKED.size + _RECORD.size


class Board:
    """One slot per attention rank of the deployment; each is written by one process and read by any."""

    def __init__(self, file: int) -> None:
        self._file = file

    @classmethod
    def make(cls, ranks: int) -> Board:
        """A new one; OSError where the system has no such memory."""
        board = cls(os.memfd_create("afd-board"))
        os.ftruncate(board._file, ranks * _SLOT)
        return board

    @classmethod
    def open(cls, path: str) -> Board:
        """The one that another process made; OSError when that process is gone."""
        return cls(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    @property
    def path(self) -> str:
        """Where other processes of this user open it, as long as this process lives."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def post(self, rank: int, standing: Standing) -> None:
        """Replaces what a rank said before."""
        peers = standing.peers[:MOST_PEERS]
        record = _RECORD.pack(standing.status, standing.since, *peers, *[-1] * (MOST_PEERS - len(peers)))
        os.pwrite(self._file, _CHECKED.pack(zlib.crc32(record)) + record, rank * _SLOT)

    def read(self) -> dict[int, Standing]:
        """What each rank said last, without ranks that said nothing yet."""
        memory = os.pread(self._file, os.fstat(self._file).st_size, 0)
        found = {}
        for rank in range(len(memory) // _SLOT):
            slot = memory[rank * _SLOT : (rank + 1) * _SLOT]
            (check,) = _CHECKED.unpack_from(slot)
            if check == zlib.crc32(slot[_CHECKED.size :]):  # not empty, and not half written
                status, since, *peers = _RECORD.unpack_from(slot, _CHECKED.size)
                found[rank] = Standing(Status(status), tuple(peer for peer in peers if peer >= 0), since)
        return found

    def close(self) -> None:
        """Gives the descriptor back; may be called twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


_made: Board | None = None


def offer(ranks: int) -> None:
    """Makes this process's board for ``ranks`` attention ranks and names it to the processes that it will start.

    One of several API servers of an engine uses the board of the process that started them all.
    """
    global _made
    parent = multiprocessing.parent_process()
    if parent is not None and os.environ.get(VARIABLE, "").startswith(f"/proc/{parent.pid}/"):
        return
    made, _made = _made, None
    if made is not None:
        made.close()
    os.environ.pop(VARIABLE, None)
    try:
        _made = Board.make(ranks)
    except (AttributeError, OSError) as error:  # not Linux, or no memory left
        log.info("/health cannot tell whom this server waits for: %s", error)
        return
    os.environ[VARIABLE] = _made.path


def find() -> Board | None:
    """The board of this server, None where there is none that this process can reach."""
    path = os.environ.get(VARIABLE)
    if path:
        with contextlib.suppress(OSError):  # such as a worker on another host
            return Board.open(path)
    return None
