"""Requests and answers of one attention rank, as an FFN rank finds them in shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from afd_connectors.errors import FrameError
from afd_connectors.layout import Layout
from afd_connectors.listener import Arrival
from afd_connectors.shape import Shape
from afd_connectors.transports.paired.buffers import Buffer
from afd_connectors.transports.paired.head import fields
from afd_connectors.transports.paired.peer import Peer
from afd_connectors.transports.shm_handover import accept
from afd_connectors.transports.shm_line import hear, ring
from afd_connectors.transports.shm_segment import Lane, Segment


class MemoryPeer(Peer):
    """See Peer; never waits. Requests are computed from where the attention rank wrote them."""

    def __init__(self, arrival: Arrival, layout: Layout, shape: Shape) -> None:
        self._segment: Segment = accept(arrival.data, shape)
        buffers = [Buffer.over(shape, lane.hidden, lane.router) for lane in self._segment.requests]
        super().__init__(arrival, layout, shape, buffers, set())
        self._lanes: Sequence[tuple[int, Lane]] = tuple(enumerate(self._segment.requests))
        self._heard = 0
        self._marks = tuple((lane.mark, lane) for lane in self._segment.requests)

    @property
    def blocked(self) -> bool:
        """See Peer."""
        return self._unannounced_since is not None

    @property
    def arrived(self) -> bool:
        """See Peer."""
        if self._unannounced_since is not None:  # the announcement wakes this side, not the request
            return False
        if self._segment.calls != self._heard:
            return True
        for mark, lane in self._marks:  # noqa: SIM110 - asked thousands of times in a row, where a call costs
            if mark[0] != lane.count:
                return True
        return False

    def hear(self) -> None:
        """See Peer."""
        hear(self.data)
        self.advance()

    def advance(self) -> None:
        """See Peer."""
        calls = self._segment.calls
        if calls != self._heard:
            self._heard = calls
            self.channel.drain()
        for stage, lane in self._lanes:
            if lane.arrived():
                head = fields(lane.head())
                if not self._accept(head):
                    return
                if head[3] != stage:
                    raise FrameError(f"it sent a request for stage {head[3]} in the place of stage {stage}")
                lane.take()
                self._land(head)

    def reply(self, stage: int, head: bytes, rows: memoryview) -> None:
        """See Peer."""
        lane = self._segment.replies[stage]
        lane.hidden_bytes[: len(rows)] = rows
        lane.publish(head)
        if self._segment.dozing("attention"):
            ring(self.data)

    def free(self) -> None:
        """See Peer; the memory goes when nobody computes from it any more."""
        super().free()
        self.buffers = self._lanes = self._marks = ()
        del self._segment

    def doze(self, _asleep: bool) -> None:
        """See Peer."""
        self._segment.doze("ffn", _asleep)
