"""A cable between two hosts that is cut for a while: no end of a connection hears of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from afd_connectors import Mode, Settings, Step
from tests.support.netns import Cable
from tests.support.ranks import SHAPE, TOKENS, Rank, attention, forward, layers

pytestmark = pytest.mark.needs_netns
TIMEOUT_S = 2.0


@pytest.fixture(scope="module")
def cable() -> Iterator[Cable]:
    with Cable() as cable:
        yield cable


@pytest.mark.parametrize("cut_s", [0.5 * TIMEOUT_S, 3 * TIMEOUT_S])
def test_a_cut_in_mid_step(cable: Cable, cut_s: float) -> None:
    """Shorter and longer than a live peer may be silent."""
    settings = Settings(
        host=cable.there, port=1239, timeout_s=TIMEOUT_S, recovery_timeout_s=40, join_timeout_s=40, secret="cable"
    )
    rank = Rank("tcp", "ffn", settings, cable.name)
    try:
        port = attention("tcp", settings)
        step = Step(1, Mode.EAGER, TOKENS)
        port.begin(step)
        layers(port, step, 0, 3)
        cable.cut()
        mended: list[float] = []

        def mend() -> None:
            cable.mend()
            mended.append(time.monotonic())

        timer = threading.Timer(cut_s, mend)
        timer.start()
        layers(port, step, 3, SHAPE.layers)
        timer.join()
        assert time.monotonic() - mended[0] < 5
        forward(port, 2)
        port.close()
    finally:
        rank.end()
        cable.mend()


def test_a_cut_between_steps(cable: Cable) -> None:
    """Nobody asks anything meanwhile; the next step works."""
    settings = Settings(host=cable.there, port=1240, timeout_s=TIMEOUT_S, recovery_timeout_s=40, join_timeout_s=40)
    rank = Rank("tcp", "ffn", settings, cable.name)
    try:
        port = attention("tcp", settings)
        forward(port, 1)
        cable.cut()
        time.sleep(2 * TIMEOUT_S)
        cable.mend()
        begun = time.monotonic()
        forward(port, 2)
        assert time.monotonic() - begun < TIMEOUT_S + 5
        port.close()
    finally:
        rank.end()
        cable.mend()
