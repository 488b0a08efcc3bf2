"""Standbys take over from FFN ranks, and a replacement from an attention rank; the contract suite has the rest.

Every test runs for all connectors that reconnect, side by side.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch

from afd_connectors import (
    AttentionPort,
    DeadlineExceeded,
    HandshakeRefused,
    Mode,
    PeerLost,
    Role,
    Settings,
    Step,
    resolve,
)
from afd_connectors.testing import free_port
from tests.support.ranks import SHAPE, STEPPED, TOKENS, Rank, attention, forward, layers, reconnecting
from tests.support.side_by_side import side_by_side

SOON_S = 5.0  # from a working address to the next answer
STEP = Step(1, Mode.EAGER, TOKENS)


class Place:
    """An FFN rank's own address and a standby's; ranks are started at either and ended with the test."""

    def __init__(self, connector: str, stack: ExitStack) -> None:
        own, standby = free_port(), free_port()
        self.connector, self._stack = connector, stack
        self.settings = Settings(
            port=own,
            timeout_s=2.0,
            recovery_timeout_s=30.0,
            join_timeout_s=30.0,
            secret="one",
            extra={"standby_addresses": [f"127.0.0.1:{standby}"]},
        )
        self._standby = replace(self.settings, port=standby)

    def start(self, role: Role = "ffn", *, standby: bool = False) -> Rank:
        """A rank's process, its port open."""
        rank = Rank(self.connector, role, self._standby if standby else self.settings)
        self._stack.callback(rank.end)
        return rank

    def attention(self, **changes: object) -> AttentionPort:
        """The attention rank, in this process, with some settings changed."""
        port = attention(self.connector, replace(self.settings, **changes))  # type: ignore[arg-type]
        self._stack.callback(port.close)
        return port

    def shown(self, *, standby: bool = False) -> str:
        """One of the two addresses as a port tells it."""
        return f"127.0.0.1:{(self._standby if standby else self.settings).port}"


def everywhere(test: Callable[[Place], None]) -> Callable[[], None]:
    """The test with a place of each connector."""

    def at_once() -> None:
        with ExitStack() as stack:
            places = {name: Place(name, stack.enter_context(ExitStack())) for name in reconnecting()}
            side_by_side(lambda name: test(places[name]), places)

    at_once.__name__, at_once.__doc__ = test.__name__, test.__doc__
    return at_once


def seconds(act: Callable[[], None]) -> float:
    """How long it takes."""
    begun = time.monotonic()
    act()
    return time.monotonic() - begun


def at(port: AttentionPort) -> str:
    """Where the FFN rank is that the port is connected to."""
    (peer,) = port.peers()
    assert peer.state == "connected"
    return peer.address


@everywhere
def test_a_standby_takes_over_from_a_killed_rank(place: Place) -> None:
    own, _ = place.start(), place.start(standby=True)
    port = place.attention()
    assert at(port) == place.shown()
    port.begin(STEP)
    layers(port, STEP, 0, 10)
    own.signal(signal.SIGKILL)
    assert seconds(lambda: layers(port, STEP, 10, SHAPE.layers)) < SOON_S
    assert at(port) == place.shown(standby=True)
    forward(port, 2)


@everywhere
def test_a_standby_takes_over_from_a_stopped_rank(place: Place) -> None:
    """Its connections stand and its address accepts new ones, so only time tells; it is not asked again later."""
    own, _ = place.start(), place.start(standby=True)
    port = place.attention()
    port.begin(STEP)
    layers(port, STEP, 0, 10)
    own.signal(signal.SIGSTOP)
    assert seconds(lambda: layers(port, STEP, 10, SHAPE.layers)) < place.settings.timeout_s + SOON_S
    assert at(port) == place.shown(standby=True)
    own.signal(signal.SIGCONT)
    forward(port, 2)
    assert at(port) == place.shown(standby=True)


@everywhere
def test_a_rank_that_is_back_takes_over_from_the_standby(place: Place) -> None:
    own, standby = place.start(), place.start(standby=True)
    port = place.attention()
    own.signal(signal.SIGKILL)
    forward(port, 1)
    assert at(port) == place.shown(standby=True)
    place.start()
    standby.signal(signal.SIGKILL)
    assert seconds(lambda: forward(port, 2)) < SOON_S
    assert at(port) == place.shown()


@everywhere
def test_attention_joins_through_the_standby(place: Place) -> None:
    place.start(standby=True)
    port = place.attention(join_timeout_s=10.0)
    assert at(port) == place.shown(standby=True)
    forward(port, 1)


@everywhere
def test_killed_again_and_again(place: Place) -> None:
    """Own rank and standby in turn, at arbitrary points of a stream of exchanges."""
    ranks = {False: place.start(), True: place.start(standby=True)}
    port = place.attention()
    done = threading.Event()

    def chaos() -> None:
        standby = False
        while not done.wait(0.4):
            ranks[standby].signal(signal.SIGKILL)
            ranks[standby] = place.start(standby=standby)
            standby = not standby

    trouble = threading.Thread(target=chaos)
    trouble.start()
    try:
        until, seq = time.monotonic() + 12, 0
        while time.monotonic() < until:
            seq += 1
            forward(port, seq, pause_s=0.002)
    finally:
        done.set()
        trouble.join(60)
    assert seq > 5


@everywhere
def test_one_sentence_says_what_died_when(place: Place) -> None:
    own, standby = place.start(), place.start(standby=True)
    port = place.attention(recovery_timeout_s=1.5)
    port.begin(STEP)
    layers(port, STEP, 0, 3)
    own.signal(signal.SIGKILL)
    standby.signal(signal.SIGKILL)
    rows = torch.zeros(TOKENS[0], SHAPE.hidden).bfloat16()
    port.send(STEP, 3, rows)
    begun = time.monotonic()
    sentence = rf"lost at \d\d:\d\d:\d\d because .*{place.shown()}.*within 1.5 s.*step 1, layer 3, stage 0"
    with pytest.raises(PeerLost, match=sentence) as raised:
        port.recv(STEP, 3, rows)
    assert 1.4 < time.monotonic() - begun < 7
    assert place.shown(standby=True) in str(raised.value)
    assert "\n" not in str(raised.value)


@everywhere
def test_nobody_to_join(place: Place) -> None:
    with pytest.raises(DeadlineExceeded, match=rf"{place.shown()}.*{place.shown(standby=True)}.*within 1 s"):
        place.attention(join_timeout_s=1.0)


@everywhere
def test_a_refusal_is_told_although_the_standby_is_away(place: Place) -> None:
    """What the last of several addresses answered is not all that a user needs to know."""
    place.start()
    with pytest.raises((DeadlineExceeded, HandshakeRefused), match="different secrets"):
        place.attention(join_timeout_s=2.0, secret="another")


@everywhere
def test_a_stopped_attention_rank_is_replaced_and_keeps_away(place: Place) -> None:
    """Silent for timeout_s in mid-step it loses its place, and gets it back only from its successor."""
    place.start()
    first = place.start("attention")
    first.heard(STEPPED)
    first.signal(signal.SIGSTOP)
    port = place.attention()
    forward(port, 1)
    first.signal(signal.SIGCONT)
    forward(port, 2, pause_s=0.02)
    port.close()
    first.heard(STEPPED)


@pytest.mark.parametrize("bad", ["127.0.0.1:1", ["nowhere"], ["a:70000"], [7]])
@pytest.mark.parametrize("connector", reconnecting())
def test_standbys_are_checked(connector: str, bad: object) -> None:
    with pytest.raises(ValueError, match="standby_addresses must"):
        resolve(connector, "cpu").check_options({"standby_addresses": bad})
