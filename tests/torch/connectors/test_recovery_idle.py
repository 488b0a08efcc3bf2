"""An idle hour, and a host that slept through one, in simulated time."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest

from afd_connectors import Shape, resolve
from afd_connectors.channel import Channel
from afd_connectors.event import Event
from afd_connectors.pulse import Pulse
from afd_connectors.testing import Group
from tests.support.ranks import reconnecting

HOUR_S, RATE = 3600.0, 1000.0


class Clock:
    """time.monotonic with a rate that can be changed; never goes back."""

    def __init__(self) -> None:
        self._real = time.monotonic
        start = self._real()
        self._line = (start, start, 1.0)

    def __call__(self) -> float:
        real, shown, rate = self._line
        return shown + (self._real() - real) * rate

    def run(self, rate: float) -> None:
        """From now on ``rate`` seconds pass in one."""
        self._line = (self._real(), self(), rate)

    def leap(self, seconds: float) -> None:
        """It is ``seconds`` later at once."""
        self._line = (self._real(), self() + seconds, 1.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Every time.monotonic() of this process."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


@pytest.fixture(params=reconnecting())
def group(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Group]:
    with Group(resolve(request.param, "cpu"), Shape(16, 8, "bfloat16", 3, stages=2), attention=2) as group:
        yield group


def test_an_idle_hour(
    group: Group, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Heartbeats go on, nobody loses anybody, nothing is waited for, and the first exchange after it works."""
    caplog.set_level(logging.WARNING, "afd.connectors")
    beats: list[float] = []
    heartbeat = Channel.heartbeat

    def counted(channel: Channel, event: Event) -> None:
        beats.append(time.monotonic())
        heartbeat(channel, event)

    monkeypatch.setattr(Channel, "heartbeat", counted)
    monkeypatch.setattr(Pulse.__init__, "__defaults__", (1.0 / RATE,))
    group.start_ffn()
    ports = [group.open_attention(rank) for rank in (0, 1)]
    for port in ports:
        group.forward(port, 1, 3, 2)
    before = [port.peers()[0].since for port in ports], [peer.since for peer in group.ffn_port().peers()]
    begun, works = time.monotonic(), len(group.works)
    beats.clear()
    clock.run(RATE)
    while time.monotonic() - begun < HOUR_S:
        time.sleep(0.05)
        peers = [*group.ffn_port().peers(), *(port.peers()[0] for port in ports)]
        assert {peer.state for peer in peers} == {"connected"}
    clock.run(1.0)
    # Each of four pulses would beat 3600 times; a busy machine is granted most of that.
    assert len(beats) > 4 * HOUR_S / 10
    assert max(beats) > begun + HOUR_S - 300
    assert len(group.works) == works
    ended = time.monotonic()
    for port in ports:
        group.forward(port, 2, 3, 2)
    assert time.monotonic() - ended < 2
    after = [port.peers()[0].since for port in ports], [peer.since for peer in group.ffn_port().peers()]
    assert after == before
    assert caplog.text == ""


def test_a_host_that_slept_for_an_hour(group: Group, clock: Clock) -> None:
    """Time leaps in the middle of a step: late heartbeats are no reason to lose a request."""
    group.start_ffn()
    port = group.open_attention(0)
    group.forward(port, 1, 3, 2)
    clock.leap(HOUR_S)
    group.forward(port, 2, 3, 2)
    group.open_attention(1)
    clock.leap(HOUR_S)
    group.forward(port, 3, 3, 2)
