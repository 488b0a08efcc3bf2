"""One attention rank as an FFN rank knows it while it is connected: its step, its requests, its answers."""

from __future__ import annotations

import select
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from afd_connectors.checks import DTYPE_NAMES, step_problem
from afd_connectors.errors import FrameError
from afd_connectors.gather import Ready, Underway
from afd_connectors.layout import Layout
from afd_connectors.listener import Arrival
from afd_connectors.shape import Shape
from afd_connectors.step import Step
from afd_connectors.transports.paired.buffers import Buffer
from afd_connectors.transports.paired.head import REQUEST, Fields, Head
from afd_connectors.transports.served import Served


class Peer(Served, ABC):
    """Checks what the rank sends against what it announced; a transport says how bytes come and go.

    ready: whole requests by stage; rows: their row counts; buffers: where they lie, by stage; lent: the stages whose
    buffers a work is being computed from; unnoted: a step was announced, until whoever watches for it resets this;
    dropped: no longer served; polled: the interest that is registered.
    """

    def __init__(
        self, arrival: Arrival, layout: Layout, shape: Shape, buffers: Sequence[Buffer], lent: set[int]
    ) -> None:
        super().__init__(arrival, self._begin)
        self.ready: dict[int, Ready] = {}
        self.rows: dict[int, int] = {}
        self.step: Step | None = None
        self.unnoted = False
        self.buffers, self.lent = buffers, lent
        self.polled = int(select.POLLIN)
        self._layout, self._shape = layout, shape
        self._codes = frozenset((0, *DTYPE_NAMES) if shape.router else (0,))
        self._expected: tuple[int, ...] = ()
        self._last = [-1] * shape.stages
        self._unannounced_since: float | None = None

    @abstractmethod
    def hear(self) -> None:
        """The data connection has something to read; PeerLost or FrameError when the peer is to be dropped."""

    @abstractmethod
    def advance(self) -> None:
        """Goes on where `blocked` or `arrived` said so; raises like `hear`."""

    @abstractmethod
    def reply(self, stage: int, head: bytes, rows: memoryview) -> None:
        """Answers the request of `stage` without waiting for the peer, or next to it; PeerLost when it is gone."""

    @property
    @abstractmethod
    def blocked(self) -> bool:
        """Whether reading on has to wait for an announcement or for a buffer."""

    @property
    def arrived(self) -> bool:
        """Whether there is something that no poll tells of."""
        return False

    @property
    def answering(self) -> bool:
        """Whether a part of an answer has not left yet."""
        return False

    def interest(self) -> int:
        """The poll events of the data connection that can be used now."""
        return int(select.POLLIN)

    def push(self) -> None:
        """Goes on with an answer that did not leave at once; PeerLost when the peer is gone."""
        return

    def doze(self, _asleep: bool) -> None:
        """This side is about to wait in a poll, or came out of it: until then the peer must wake it."""
        return

    def blocked_s(self) -> float:
        """Seconds that a request has waited for its announcement."""
        return 0.0 if self._unannounced_since is None else time.monotonic() - self._unannounced_since

    def midway(self) -> bool:
        """Whether it owes another request of its step."""
        last_layer = self._shape.layers - 1
        return any(rows and last < last_layer for rows, last in zip(self._expected, self._last, strict=False))

    def underway(self) -> list[Underway]:
        """The stages in which it owes its next request."""
        return [
            Underway(self.rank, stage, last)
            for stage, (rows, last) in enumerate(zip(self._expected, self._last, strict=False))
            if rows and stage not in self.ready
        ]

    def _begin(self, step: Step) -> None:
        """A step was announced; runs under the channel's lock on whichever thread drains it."""
        problem = step_problem(step, self._shape)
        if problem is not None:
            raise FrameError(problem)
        if self.step is not None and step.seq <= self.step.seq:
            raise FrameError(f"it announced step {step.seq} after step {self.step.seq}")
        if self.ready:
            raise FrameError(f"it announced step {step.seq} while an exchange of the last one was open")
        # Of all stages, whatever the step has: another thread may be in the middle of a request.
        unused = (0,) * (self._shape.stages - len(step.tokens))
        self._expected = (*(self._layout.share(rows) for rows in step.tokens), *unused)
        self._last = [-1] * self._shape.stages
        self.step = step
        self.unnoted = True

    def _announced(self, seq: int) -> bool:
        """Steps and requests travel apart, so a request may be here before its announcement."""
        step = self.step
        if step is None or seq > step.seq:
            self.channel.drain()
            step = self.step
            if step is None or seq > step.seq:
                self._unannounced_since = self._unannounced_since or time.monotonic()
                return False
        self._unannounced_since = None
        return True

    def _accept(self, head: Fields) -> bool:
        """Whether its step is announced, which a request waits for; FrameError when it breaks a rule of that step."""
        step = self.step
        way, seq, layer, stage, rows, router = head
        if (
            step is not None
            and way == REQUEST
            and seq == step.seq
            and stage < len(step.tokens)
            and self._last[stage] < layer < self._shape.layers
            and rows == self._expected[stage] != 0
            and stage not in self.ready
            and router in self._codes
        ):
            self._unannounced_since = None
            return True
        if not self._announced(seq):
            return False
        self._judge(Head(*head))
        return True

    def _judge(self, head: Head) -> None:
        """FrameError for a request that breaks a rule of the step that was announced."""
        step = self.step
        assert step is not None
        where = f"a request for layer {head.layer} stage {head.stage} of step {head.seq}"
        if head.way != REQUEST:
            raise FrameError(f"it sent an answer, expected a request of step {step.seq}")
        if head.seq < step.seq:
            raise FrameError(f"it sent {where} late, after it announced step {step.seq}")
        if head.stage >= len(step.tokens) or head.layer >= self._shape.layers:
            raise FrameError(
                f"it sent {where}, expected stages below {len(step.tokens)} and layers below {self._shape.layers}"
            )
        if head.rows != self._expected[head.stage] or not head.rows:
            raise FrameError(f"it sent {where} with {head.rows} rows, announced were {self._expected[head.stage]}")
        if head.layer <= self._last[head.stage] or head.stage in self.ready:
            raise FrameError(f"it sent {where} twice or out of order, the last was layer {self._last[head.stage]}")
        if head.router and (head.router not in DTYPE_NAMES or not self._shape.router):
            raise FrameError(
                f"it sent {where} with logits of kind {head.router}, expected "
                f"{'a known kind' if self._shape.router else 'none'}"
            )

    def _land(self, head: Fields) -> None:
        _, seq, layer, stage, rows, router = head
        if self.step is None or seq != self.step.seq:
            raise FrameError(f"it announced another step before a request of step {seq} was whole")
        fields = (self.rank, stage, layer, self._last[stage], router, time.monotonic())
        self.rows[stage] = rows
        self._last[stage] = layer
        self.ready[stage] = tuple.__new__(Ready, fields)  # a named tuple's own call takes twice as long
