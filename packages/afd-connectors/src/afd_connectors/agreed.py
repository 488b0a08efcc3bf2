"""Control connections that have agreed and whose data connection has not come yet."""

from __future__ import annotations

import contextlib
import hmac
import socket
import threading
from dataclasses import dataclass

from afd_connectors.deadline import Deadline
from afd_connectors.errors import FrameError
from afd_connectors.handshake import HELLO_S, Session


@dataclass(frozen=True, slots=True)
class Expected:
    """An agreed control connection and until when its data connection may come."""

    session: Session
    control: socket.socket
    deadline: Deadline


class Agreed:
    """At most one per rank, so that callers who agree and never go on cost no more than honest ones."""

    def __init__(self) -> None:
        self._by_rank: dict[int, Expected] = {}
        self._lock = threading.Lock()
        self._closed = False

    def put(self, session: Session, control: socket.socket) -> bool:
        """Keeps a connection for HELLO_S seconds in place of an older one of its rank; False after close."""
        with self._lock:
            if self._closed:
                return False
            old = self._by_rank.pop(session.rank, None)
            self._by_rank[session.rank] = Expected(session, control, Deadline(HELLO_S))
        if old is not None:
            hang_up(old.control)
        return True

    def take(self, token: str, proof: str) -> Expected:
        """The connection that a data connection joins, once; FrameError without the token or its proof."""
        with self._lock:
            found = next((e for e in self._by_rank.values() if e.session.token == token), None)
            if found is None:
                raise FrameError("it asked to join a channel that is not known or came too late.")
            if not hmac.compare_digest(found.session.proof.encode(), proof.encode()):
                raise FrameError("it could not prove that it belongs to the channel that it asked to join.")
            del self._by_rank[found.session.rank]
            return found

    def forget_late(self) -> None:
        """Hangs up those whose data connection did not come in time."""
        with self._lock:
            late = [expected for expected in self._by_rank.values() if expected.deadline.passed]
            for expected in late:
                del self._by_rank[expected.session.rank]
        for expected in late:
            hang_up(expected.control)

    def close(self) -> None:
        """Hangs up all and takes no more."""
        with self._lock:
            self._closed = True
            left = tuple(self._by_rank.values())
            self._by_rank.clear()
        for expected in left:
            hang_up(expected.control)


def hang_up(sock: socket.socket) -> None:
    """Ends a connection for every thread that uses it, then frees it."""
    with contextlib.suppress(OSError):  # not connected any more, which is what is wanted
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
