"""One attention rank as an FFN rank knows it while it is connected: the steps it announced, the link to it."""

from __future__ import annotations

import time
from collections import deque

from afd_connectors.checks import step_problem
from afd_connectors.errors import FrameError
from afd_connectors.listener import Arrival
from afd_connectors.shape import Shape
from afd_connectors.step import Step
from afd_connectors.transports.enqueued.carrier import Link
from afd_connectors.transports.served import Served


class Peer(Served):
    """See Guest. steps: announced and not served yet, with the time.monotonic() at which each came."""

    def __init__(self, arrival: Arrival, shape: Shape, link: Link, epoch: int) -> None:
        super().__init__(arrival, self._begin)
        self.epoch, self.link = epoch, link
        self.steps: deque[tuple[Step, float]] = deque()
        self._shape = shape
        self._last = -1

    def midway(self) -> bool:
        """Whether it ever began a step: what the device still does of it cannot be asked without waiting."""
        return self._last >= 0

    def blocked_s(self) -> float:
        """No request of this transport waits for its announcement: rows only move within announced steps."""
        return 0.0

    def hang_up(self) -> None:
        """See Served; what the device does on the link ends after the sockets, so that nothing late is believed."""
        reason = self.channel.lost or "this side ended the connection"
        super().hang_up()
        self.link.lose(reason)

    def free(self) -> None:
        """See Served."""
        self.link.free()
        super().free()

    def _begin(self, step: Step) -> None:
        """A step was announced; runs under the channel's lock on whichever thread drains it."""
        problem = step_problem(step, self._shape)
        if problem is not None:
            raise FrameError(problem)
        if step.seq <= self._last:
            raise FrameError(f"it announced step {step.seq} after step {self._last}")
        self._last = step.seq
        self.steps.append((step, time.monotonic()))
