"""Agreed attention ranks that break the rules of steps and requests in any order: the others do not notice it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from afd_connectors import ConnectorError, Deadline, Event, Layout, Mode, Phase, Shape, Step, control, resolve
from afd_connectors.control import Kind
from afd_connectors.dial import Dialled, dial
from afd_connectors.handshake import Identity
from afd_connectors.testing import Group
from afd_connectors.testing.group import within
from afd_connectors.transports.paired.head import REQUEST, Head

SHAPE = Shape(16, 8, "bfloat16", 3, stages=2)


@dataclass(frozen=True)
class Announce:
    """A step so much after the last one, on the control connection."""

    later: int
    tokens: tuple[int, ...]

    def write(self, pair: Dialled, seq: int) -> int:
        step = Step(seq + self.later, Mode.EAGER, self.tokens)
        pair.control.sendall(control.encode(Kind.STEP, step.encode()))
        time.sleep(0.002)
        return step.seq


@dataclass(frozen=True)
class Request:
    """A request of the last step, or the part of it up to `end` and from `start` on."""

    layer: int
    stage: int
    rows: int
    start: int = 0
    end: int = 10_000

    def write(self, pair: Dialled, seq: int) -> int:
        head = Head(REQUEST, seq, self.layer, self.stage, self.rows, 0).encode()
        pair.data.sendall((head + bytes(self.rows * SHAPE.row_bytes))[self.start : self.end])
        time.sleep(0.002)
        return seq


@dataclass(frozen=True)
class Beat:
    """A sign of life."""

    def write(self, pair: Dialled, seq: int) -> int:
        now = time.monotonic()
        pair.control.sendall(control.encode(Kind.HEARTBEAT, Event(Phase.SENT, now, seq).encode(now)))
        return seq


Move = Announce | Request | Beat
rows = st.integers(0, 16)
moves: st.SearchStrategy[Move] = st.one_of(
    st.builds(Announce, st.sampled_from([1, 1, 1, 2, 0]), st.lists(rows, min_size=1, max_size=2).map(tuple)),
    st.builds(Request, st.integers(0, 2), st.integers(0, 1), rows, st.just(0), st.integers(1, 24 + 256)),
    st.builds(Request, st.integers(0, 2), st.integers(0, 1), rows),
    st.builds(Beat),
)


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    """2A1F; rank 0 is the one that breaks the rules."""
    with Group(resolve("tcp", "cpu"), SHAPE, attention=2) as group:
        group.start_ffn()
        yield group


@pytest.fixture(scope="module")
def steps(group: Group) -> Iterator[None]:
    """Steps of the honest rank, one with each `next`."""

    def run() -> Iterator[None]:
        port = group.open_attention(1)
        for seq in range(1, 10_000):
            group.forward(port, seq, 3, 2)
            assert port.peers()[0].state == "connected"
            yield

    return run()


def agreed(group: Group) -> Dialled:
    """Both connections of rank 0, once its place is free again."""
    me, deadline = Identity(Layout("attention", 0, 2, 1), group.facts, None), Deadline(10)
    while not deadline.passed:
        with suppress(ConnectorError):
            return dial((group.settings.host, group.settings.port), me, 0, deadline)
        time.sleep(0.01)
    raise AssertionError("the FFN rank let nobody in any more")


@settings(max_examples=60)
@given(st.lists(moves, min_size=1, max_size=12))
@example([Announce(1, (3, 2)), Request(0, 1, 2, 0, 30), Announce(1, (3,)), Request(0, 1, 2, 30)])
@example([Announce(1, (3,)), Request(0, 0, 3, 0, 30), Announce(1, (5,)), Request(0, 0, 3, 30)])
def test_no_order_of_moves_disturbs_the_others(group: Group, steps: Iterator[None], plan: list[Move]) -> None:
    """The FFN rank drops whoever breaks a rule; whoever keeps them is answered."""
    pair = agreed(group)
    with closing(pair.control), closing(pair.data):
        seq = 0
        with suppress(BrokenPipeError, ConnectionResetError):
            for move in plan:
                seq = move.write(pair, seq)
        start = time.monotonic()
        next(steps)
        assert time.monotonic() - start < 5
    assert not group.died


def test_who_never_reads_answers_is_dropped() -> None:
    """Answers that are not taken do not pile up: the next request of their stage breaks the rules."""
    shape = Shape(64, 512, "float32", 100)
    with Group(resolve("tcp", "cpu"), shape, attention=2) as group:
        group.start_ffn()
        pair = agreed(group)
        with closing(pair.control), closing(pair.data):
            step = Step(1, Mode.EAGER, (shape.tokens,))
            pair.control.sendall(control.encode(Kind.STEP, step.encode()))
            pair.data.settimeout(5)
            sent = 0
            with suppress(BrokenPipeError, ConnectionResetError):
                for layer in range(shape.layers):
                    head = Head(REQUEST, 1, layer, 0, shape.tokens, 0)
                    pair.data.sendall(head.encode() + bytes(shape.hidden_bytes))
                    sent += 1
                    within(5, lambda so_far=sent: len(group.works) >= so_far)
            assert sent < shape.layers
        group.forward(group.open_attention(1), 1, 3)
