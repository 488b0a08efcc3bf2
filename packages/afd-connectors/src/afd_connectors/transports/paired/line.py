"""An attention rank's pair of connections to one FFN rank: what every transport's pair has in common."""

from __future__ import annotations

import contextlib
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from afd_connectors.channel import Channel
from afd_connectors.deadline import Deadline
from afd_connectors.errors import ConnectorError, DeadlineExceeded, FrameError, PeerLost
from afd_connectors.step import Step
from afd_connectors.transports.paired.head import decode, reply_to

if TYPE_CHECKING:
    from afd_connectors.dial import Dialled
    from afd_connectors.transports.paired.pending import Pending

LOOK_S = 0.2  # how often a wait looks at the control connection


class Line(ABC):
    """One agreed pair of connections; after an error it is closed and a new one is made, never reused.

    broken: why it cannot be used any more; stages: the open exchanges, which have room for early answers;
    holds: a request stays where `held` finds it until it is answered, so nobody else needs to keep a copy.
    """

    holds: ClassVar[bool] = False

    def __init__(self, peer: int, dialled: Dialled, stages: Sequence[Pending], timeout_s: float) -> None:
        self.peer = peer
        self.channel = Channel(dialled.control)
        self.since = time.monotonic()
        self.broken: ConnectorError | None = None
        self._data = dialled.data
        self._timeout_s = timeout_s
        self._stages = stages
        self._awaited: dict[int, bytes] = {}  # heads of requests, by stage

    @property
    def lost(self) -> str | None:
        """Why it cannot be used any more, None while it can."""
        return self.channel.lost if self.broken is None else self.broken.message

    def announce(self, step: Step) -> None:
        """Tells the FFN rank of a step; PeerLost when it does not take it."""
        self.channel.announce(step)

    @abstractmethod
    def request(self, stage: int, head: bytes, rows: memoryview, logits: memoryview | None) -> None:
        """Sends one exchange of `stage`; PeerLost or DeadlineExceeded when the FFN rank does not take it."""

    @abstractmethod
    def answer(self, stage: int, rows: memoryview) -> None:
        """Fills `rows` with the answer to this stage's request.

        PeerLost when the connection ends, DeadlineExceeded when nothing comes, FrameError for anything else.
        """

    def held(self, _stage: int) -> tuple[memoryview, memoryview | None] | None:
        """The rows and logits of this stage's open request, None when it is not held here."""
        return None

    def _check(self, head: memoryview) -> int:
        """The stage of an answer with that head; FrameError unless it is awaited."""
        found = decode(head)
        awaited = self._awaited.get(found.stage)
        if awaited is None or head != reply_to(awaited):
            requests = [decode(each) for each in self._awaited.values()]
            raise FrameError(f"it sent {found} while answers to {requests} were awaited")
        return found.stage

    def _look(self, deadline: Deadline, lacking: str) -> None:
        """Between two parts of a wait: ends it when the peer is known to be gone or the time is up."""
        self.channel.drain()
        if self.channel.lost is not None:
            raise PeerLost(self.channel.lost)
        if deadline.passed:
            silent = self.channel.silent_s()
            life = "its heartbeats go on" if silent < 3 else f"its last heartbeat came {silent:.0f} s ago"
            raise DeadlineExceeded(f"it {lacking} for {self._timeout_s:g} s and {life}")

    def hang_up(self) -> None:
        """Ends both connections for every thread; `free` gives the descriptors back."""
        for sock in (self.channel.sock, self._data):
            with contextlib.suppress(OSError):  # not connected any more, which is what is wanted
                sock.shutdown(socket.SHUT_RDWR)

    def free(self) -> None:
        """Closes the sockets; only once no other thread uses them."""
        self.channel.sock.close()
        self._data.close()
