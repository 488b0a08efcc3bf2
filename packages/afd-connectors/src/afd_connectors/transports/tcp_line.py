"""Requests and answers over a TCP connection: requests out, and only awaited answers in."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from afd_connectors.awake import AWAKE_S, awake
from afd_connectors.channel import NO_WAIT, SEND_NOW
from afd_connectors.deadline import Deadline
from afd_connectors.errors import FrameError, PeerLost
from afd_connectors.transports.paired.head import HEAD_BYTES, decode
from afd_connectors.transports.paired.line import LOOK_S, Line

if TYPE_CHECKING:
    from afd_connectors.dial import Dialled
    from afd_connectors.transports.paired.pending import Pending


class StreamLine(Line):
    """See Line; takes in answers while the FFN rank, busy answering, reads nothing."""

    def __init__(self, peer: int, dialled: Dialled, stages: Sequence[Pending], timeout_s: float) -> None:
        super().__init__(peer, dialled, stages, timeout_s)
        # The kernel ends a blocking read after this long, which costs less than a poll before each.
        self._data.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, int(LOOK_S * 1e6)))
        self._arrived: set[int] = set()
        self._head = memoryview(bytearray(HEAD_BYTES))

    def request(self, stage: int, head: bytes, rows: memoryview, logits: memoryview | None) -> None:
        """See Line."""
        start = memoryview(head)
        views = [start, rows] if logits is None else [start, rows, logits]
        self._awaited[stage] = head
        rest = self._push(views)
        if rest:
            self._push_rest(rest)

    def _push(self, views: list[memoryview]) -> list[memoryview]:
        try:
            sent = self._data.sendmsg(views, (), SEND_NOW)
        except BlockingIOError:
            return views
        except OSError as error:
            raise PeerLost(f"its data connection broke: {error.strerror or error}") from error
        return after(views, sent)

    def _push_rest(self, rest: list[memoryview]) -> None:
        poll = select.poll()
        poll.register(self._data, select.POLLIN | select.POLLOUT)
        deadline = Deadline(self._timeout_s)
        while rest:
            events = sum(event for _, event in poll.poll(int(LOOK_S * 1000)))
            if events & select.POLLIN:
                self._take_early()
            if events & (select.POLLOUT | select.POLLERR | select.POLLHUP):
                left = self._push(rest)
                if left is not rest:
                    deadline = Deadline(self._timeout_s)
                rest = left
            self._look(deadline, "took no more bytes of a request")

    def answer(self, stage: int, rows: memoryview) -> None:
        """See Line."""
        if stage not in self._arrived and len(self._awaited) == 1:
            self._fill([self._head, rows])  # only one answer can come, so head and rows are read at once
            self._check(self._head)
        else:
            while stage not in self._arrived:
                self._take_early()
            rows[:] = self._stages[stage].answer_room(self.peer)
            self._arrived.discard(stage)
        del self._awaited[stage]

    def _take_early(self) -> None:
        self._fill([self._head])
        stage = self._check(self._head)
        if stage in self._arrived:
            raise FrameError(f"it answered stage {stage} of step {decode(self._head).seq} twice")
        self._fill([self._stages[stage].answer_room(self.peer)])
        self._arrived.add(stage)

    def _fill(self, views: list[memoryview]) -> None:
        deadline: Deadline | None = None
        while views:
            try:
                soon = awake(lambda parts=views: self._try(parts), time.monotonic() + AWAKE_S)  # type: ignore[misc]
                count = soon[0] if soon is not None else self._data.recvmsg_into(views)[0]
            except BlockingIOError:  # nothing for LOOK_S
                deadline = deadline or Deadline(self._timeout_s - LOOK_S)
                self._look(deadline, "sent no answer")
                continue
            except OSError as error:
                raise PeerLost(f"its data connection broke: {error.strerror or error}") from error
            if not count:
                raise PeerLost("it closed the connection, as a process that ends does")
            views, deadline = after(views, count), None

    def _try(self, views: list[memoryview]) -> tuple[int] | None:
        """(bytes that are here now,), None for nothing yet."""
        try:
            return (self._data.recvmsg_into(views, 0, NO_WAIT)[0],)
        except BlockingIOError:
            return None


def after(views: list[memoryview], count: int) -> list[memoryview]:
    """What is left of `views` after their first `count` bytes; empty when nothing is."""
    if count == sum(map(len, views)):  # nearly always
        return []
    for index, view in enumerate(views):
        if count < len(view):
            return [view[count:], *views[index + 1 :]]
        count -= len(view)
    return []
