"""An FFN rank chooses its next step when the device is free, and looks around while it is not."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

from afd_connectors.stepped import SteppedFFNPort
from afd_workers.cuda_ffn import StepSource
from afd_workers.cuda_pace import Pace


class FakeEvent:
    """Done so many seconds after each record."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.at = seconds, 0.0

    def record(self) -> None:
        self.at = time.monotonic() + self.seconds

    def query(self) -> bool:
        return time.monotonic() >= self.at


def test_free_before_anything_was_begun() -> None:
    assert Pace(lambda: FakeEvent(60.0)).free(0.0)


def test_waits_until_the_device_is_done() -> None:
    pace = Pace(lambda: FakeEvent(0.1))
    pace.begun()
    assert not pace.free(0.0)
    began = time.monotonic()
    assert pace.free(5.0)
    assert 0.05 < time.monotonic() - began < 2.0
    pace.begun()
    assert not pace.free(0.0)


def test_gives_up_in_time() -> None:
    pace = Pace(lambda: FakeEvent(60.0))
    pace.begun()
    began = time.monotonic()
    assert not pace.free(0.1)
    assert time.monotonic() - began < 2.0


def test_a_step_that_stands_still_does_not_keep_the_ranks_other_processes_waiting() -> None:
    """They give this one up when they hear nothing for long, and an attention rank may stop in the middle of a step."""
    idle: list[bool] = []
    port = SimpleNamespace(epochs=lambda: {0: 1, 1: 2}, lasting=True)
    source = StepSource(cast("SteppedFFNPort", port), lambda _, rows, __: rows, idle=lambda: idle.append(True))
    source._pace = Pace(lambda: FakeEvent(60.0))
    source._pace.begun()
    assert source.serve_one()
    assert idle == [True]
