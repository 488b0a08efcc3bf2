"""A step as a graph of its calls, which a suite captures once and replays."""

from __future__ import annotations

from collections.abc import Callable

import torch

from afd_connectors.step import Mode, Step
from afd_connectors.stepped import DeviceAttentionPort
from afd_connectors.testing.device import CPU, settle
from afd_connectors.testing.group import Group, answer_of


class Recorded:
    """A step of one stage as a graph; where the device has none its calls are made again."""

    def __init__(self, group: Group, port: DeviceAttentionPort, rows: int) -> None:
        self._group, self._port, self._rows = group, port, rows
        self._sent, self._outs = group.rows(rows), [group.rows(rows) for _ in range(group.shape.layers)]
        self._seq = 0
        self._replay: Callable[[Step], None] = self._calls
        self._step(Mode.WARMUP, self._calls)
        self.record()

    def record(self) -> None:
        """Captures it, announced as that."""
        self._step(Mode.CAPTURE, lambda _step: None if self._group.device == CPU else self._captured(_step))

    def run(self) -> None:
        """Replays it over other rows and checks what came back."""
        self._sent.copy_(self._group.rows(self._rows))
        self._step(Mode.REPLAY, self._replay)
        check = self._port.witness()
        with self._port.awaiting():
            settle(self._group.device)
        check()
        for layer, out in enumerate(self._outs):
            assert torch.equal(out, answer_of(self._sent, layer, 0)), f"layer {layer} came back wrong"

    def _step(self, mode: Mode, call: Callable[[Step], None]) -> None:
        self._seq += 1
        step = Step(self._seq, mode, (self._rows,))
        self._port.begin(step)
        call(step)
        settle(self._group.device)

    def _captured(self, step: Step) -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # the FFN rank's thread goes on meanwhile
            self._calls(step)
        self._replay = lambda _step: graph.replay()

    def _calls(self, step: Step) -> None:
        for layer, out in enumerate(self._outs):
            self._port.send(step, layer, self._sent)
            self._port.recv(step, layer, out)
