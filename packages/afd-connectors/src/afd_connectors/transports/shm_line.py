"""Requests and answers of an attention rank in memory that it shares with an FFN rank."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from afd_connectors.awake import AWAKE_S, LOOKS_IN_MEMORY, awake
from afd_connectors.channel import NO_WAIT, SEND_NOW
from afd_connectors.deadline import Deadline
from afd_connectors.errors import FrameError, PeerLost
from afd_connectors.shape import Shape
from afd_connectors.step import Step
from afd_connectors.transports.paired.buffers import router_row_bytes
from afd_connectors.transports.paired.head import decode, reply_to
from afd_connectors.transports.paired.line import LOOK_S, Line
from afd_connectors.transports.shm_handover import offer

if TYPE_CHECKING:
    from afd_connectors.dial import Dialled
    from afd_connectors.transports.paired.pending import Pending
    from afd_connectors.transports.shm_segment import Lane


class MemoryLine(Line):
    """See Line; the data connection only wakes a side that sleeps and shows that the other one ended."""

    holds: ClassVar[bool] = True

    def __init__(self, peer: int, dialled: Dialled, stages: Sequence[Pending], timeout_s: float, shape: Shape) -> None:
        super().__init__(peer, dialled, stages, timeout_s)
        self._shape = shape
        self._segment = offer(dialled.data, shape)
        self._expected: dict[int, bytes] = {}
        self._poll = select.poll()
        self._poll.register(self._data, select.POLLIN)

    def announce(self, step: Step) -> None:
        """See Line."""
        super().announce(step)
        self._segment.call()

    def request(self, stage: int, head: bytes, rows: memoryview, logits: memoryview | None) -> None:
        """See Line."""
        lane = self._segment.requests[stage]
        lane.hidden_bytes[: len(rows)] = rows
        if logits is not None:
            lane.router_bytes[: len(logits)] = logits
        lane.publish(head)
        if self._segment.dozing("ffn"):
            ring(self._data)
        self._awaited[stage] = head
        self._expected[stage] = reply_to(head)  # now, because there is time until the answer comes

    def held(self, stage: int) -> tuple[memoryview, memoryview | None] | None:
        """See Line."""
        request = self._awaited.get(stage)
        if request is None:
            return None
        head = decode(request)
        lane = self._segment.requests[stage]
        rows = lane.hidden_bytes[: head.rows * self._shape.row_bytes]
        return rows, lane.router_bytes[
            : head.rows * router_row_bytes(self._shape, head.router)
        ] if head.router else None

    def answer(self, stage: int, rows: memoryview) -> None:
        """See Line."""
        lane = self._segment.replies[stage]
        if not awake(lane.arrived, time.monotonic() + AWAKE_S, LOOKS_IN_MEMORY):
            self._sleep(lane)
        found = lane.head()
        if found != self._expected[stage]:
            request = decode(self._awaited[stage])
            raise FrameError(f"it sent {decode(found)} while the answer to {request} was awaited")
        rows[:] = lane.hidden_bytes[: len(rows)]
        lane.take()
        del self._awaited[stage]

    def _sleep(self, lane: Lane) -> None:
        deadline = Deadline(self._timeout_s)
        while True:
            self._segment.doze("attention", True)
            events = () if lane.arrived() else self._poll.poll(int(LOOK_S * 1000))
            self._segment.doze("attention", False)
            if lane.arrived():
                return
            if events:
                hear(self._data)
            self._look(deadline, "sent no answer")

    def free(self) -> None:
        """See Line; the memory goes when nobody computes from it any more."""
        super().free()
        del self._segment


def ring(sock: socket.socket) -> None:
    """Wakes the other side; PeerLost when it is gone."""
    try:
        sock.send(b"!", SEND_NOW)
    except BlockingIOError:  # full of wake-ups that were not heard yet
        return
    except OSError as error:
        raise PeerLost(f"its data connection broke: {error.strerror or error}") from error


def hear(sock: socket.socket) -> None:
    """Takes in wake-ups; PeerLost when the connection ended."""
    try:
        heard = sock.recv(4096, NO_WAIT)
    except BlockingIOError:
        return
    except OSError as error:
        raise PeerLost(f"its data connection broke: {error.strerror or error}") from error
    if not heard:
        raise PeerLost("it closed the connection, as a process that ends does")
