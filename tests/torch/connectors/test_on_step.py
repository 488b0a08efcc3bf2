"""An FFN rank hears of a step before its first exchange, awake or asleep, where the transport allows it."""

from __future__ import annotations

import threading

import pytest

from afd_connectors import Shape, resolve
from afd_connectors.step import Mode, Step
from afd_connectors.testing import Group

ASLEEP_S = 0.1  # longer than a wait stays awake


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("pause_s", [0.0, ASLEEP_S])
def test_an_announced_step_is_told_once_and_before_its_exchanges(transport: str, pause_s: float) -> None:
    """pause_s: between steps; without one the FFN rank still looks for the next request when the step is announced."""
    told, seen, first = [0], list[tuple[int, int]](), threading.Event()
    with Group(resolve(transport, "cpu"), Shape(4, 8, "float32", layers=2)) as group:
        group.compute = lambda _rank, work: seen.append((work.step.seq, told[0])) or work.hidden  # type: ignore[func-returns-value]
        group.start_ffn()

        def on_step() -> None:
            told[0] += 1
            first.set()

        group.ffn_port().on_step = on_step
        port, rows = group.open_attention(), group.rows(2)
        for seq in range(1, 4):
            threading.Event().wait(pause_s)
            first.clear()
            step = Step(seq, Mode.EAGER, (2,))
            port.begin(step)
            assert first.wait(5.0), f"step {seq} was not told before its first exchange"
            for layer in range(2):
                port.send(step, layer, rows)
                port.recv(step, layer, rows)
    assert seen == [(seq, seq) for seq in range(1, 4) for _ in range(2)]
