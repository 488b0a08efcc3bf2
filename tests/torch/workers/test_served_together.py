"""Two attention ranks on one FFN rank under graphs: their rows are one batch, from one graph, with right answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from afd_connectors.ports import AttentionPort
from afd_connectors.shape import Shape
from afd_connectors.step import Mode, Step
from afd_connectors.stepped import Gathered, SteppedFFNPort
from afd_connectors.testing.group import Group, answer_of
from afd_workers.graphs import Steps
from tests.support.fake_nccl import FakeNccl, FakeP2p

LAYERS, ROUNDS = 3, 6


class Server:
    """An FFN rank as the CUDA worker drives it; a graph of this device is what its capture enqueued, kept for later."""

    def __init__(self, port: SteppedFFNPort) -> None:
        self.port, self.batches = port, []
        self.steps = Steps(self.forward, self.capture)
        self._capturing = False
        self._thread = threading.Thread(target=self.run, daemon=True)
        self._closing = threading.Event()
        self._thread.start()

    def forward(self, gathered: Gathered) -> None:
        for layer, stage in gathered.exchanges(self.port.layers):
            work = self.port.take(gathered, layer, stage)
            assert work is not None
            self.batches.append(work.hidden.shape[0])
            self.port.send(work, answer_of(work.hidden, layer, stage))

    def capture(self, call: Callable[[], None]) -> Callable[[], None]:
        return call

    def run(self) -> None:
        while not self._closing.is_set():
            gathered = self.port.next_step(wait_s=0.1)
            if gathered is not None:
                self.steps.run(gathered)

    def close(self) -> None:
        self._closing.set()
        self._thread.join(10)
        self.port.close()


def attend(group: Group, port: AttentionPort, sizes: list[int], failures: list[BaseException]) -> None:
    """Replays steps of these sizes as fast as their answers come."""
    try:
        for seq, rows in enumerate(sizes, start=10):
            step = Step(seq, Mode.REPLAY, (rows,))
            port.begin(step)
            for layer in range(LAYERS):
                group.exchange(port, step, layer)
    except BaseException as error:  # noqa: BLE001  # shown by the test
        failures.append(error)


def test_two_ranks_that_replay_are_served_from_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeP2p, "library", FakeNccl())
    with Group(FakeP2p, Shape(16, 8, "bfloat16", LAYERS, 1), attention=2, extra={"gather_ms": 1000}) as group:
        port = group.build("ffn").open_ffn()
        assert isinstance(port, SteppedFFNPort)
        server = Server(port)
        ports = [group.open_attention(rank) for rank in (0, 1)]
        for each, rows in zip(ports, (4, 3), strict=True):
            each.begin(Step(1, Mode.CAPTURE, (rows,)))
        until = time.monotonic() + 10
        while server.steps.figures.captured < 2 and time.monotonic() < until:
            time.sleep(0.01)
        failures: list[BaseException] = []
        threads = [
            threading.Thread(target=attend, args=(group, each, [rows] * ROUNDS, failures))
            for each, rows in zip(ports, (4, 3), strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        server.close()
        assert not failures
        figures = server.steps.figures
        assert (figures.captured, figures.composed, figures.missing) == (2, 1, 0)
        # The first step may have begun before the second rank was there; then each waits for the other.
        assert server.batches.count(7) >= LAYERS * (ROUNDS - 1)
        assert figures.replayed >= ROUNDS - 2
