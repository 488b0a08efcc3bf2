"""One attention rank as an FFN rank knows it while it is connected: the steps it announced, the link to it."""

from __future__ import annotations

import time
from collections import deque

from afd_connectors.checks import DTYPE_NAMES, step_problem
from afd_connectors.control import Logits
from afd_connectors.errors import FrameError
from afd_connectors.listener import Arrival
from afd_connectors.shape import Shape
from afd_connectors.step import Step
from afd_connectors.transports.enqueued.carrier import Link
from afd_connectors.transports.served import Served


class Peer(Served):
    """See Guest. steps: announced and not served yet, with the time.monotonic() at which each came.

    logits: by layer, the dtype code of its router logits, 0 for none; told before the first of them comes.
    """

    def __init__(self, arrival: Arrival, shape: Shape, link: Link, epoch: int) -> None:
        super().__init__(arrival, self._begin, self._learn)
        self.epoch, self.link = epoch, link
        self.steps: deque[tuple[Step, float]] = deque()
        self.logits: dict[int, int] = {}
        self._shape = shape
        self._last = -1

    def midway(self) -> bool:
        """Whether it ever began a step: what the device still does of it cannot be asked without waiting."""
        return self._last >= 0

    def blocked_s(self) -> float:
        """No request of this transport waits for its announcement: rows only move within announced steps."""
        return 0.0

    def hang_up(self) -> None:
        """See Served; what the device does on the link ends too."""
        self.link.lose(self.channel.lost or "this side ended the connection")
        super().hang_up()

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
        if any(step.tokens):  # a rank whose rows another one exchanges has none in any step
            self.steps.append((step, time.monotonic()))

    def _learn(self, told: Logits) -> None:
        """As _begin, of a layer's logits, which stay as they are: graphs were captured with them."""
        if not self._shape.router:
            raise FrameError("it tells of router logits, and the gate is on this side")
        if told.layer >= self._shape.layers or told.code not in (0, *DTYPE_NAMES):
            raise FrameError(f"it told of logits of layer {told.layer} in dtype {told.code}")
        if self.logits.setdefault(told.layer, told.code) != told.code:
            raise FrameError(f"it changed what it had told of the logits of layer {told.layer}")
