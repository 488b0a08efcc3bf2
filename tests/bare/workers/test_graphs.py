"""FFN graphs: equal steps have equal keys, different ones never, and what is missing is counted and said once."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_connectors.step import Mode, Step
from afd_connectors.stepped import Gathered, Member
from afd_workers.graphs import Steps, key_of

TOKENS = st.lists(st.integers(0, 600), min_size=1, max_size=2).map(tuple)
PARTS = st.dictionaries(st.integers(0, 9), st.tuples(st.integers(1, 3), TOKENS), min_size=1, max_size=5)


def gathered(parts: dict[int, tuple[int, tuple[int, ...]]], mode: Mode = Mode.REPLAY, seq: int = 1) -> Gathered:
    return Gathered(tuple(Member(rank, epoch, Step(seq, mode, tokens)) for rank, (epoch, tokens) in parts.items()))


@given(PARTS, st.randoms(), st.integers(1, 99))
def test_equal_steps_have_equal_keys_in_every_order(parts, random, seq) -> None:
    items = list(parts.items())
    random.shuffle(items)
    key = key_of(gathered(parts))
    assert key == key_of(gathered(dict(items), Mode.EAGER, seq))
    assert hash(key) == hash(key_of(gathered(dict(items))))


@given(PARTS, PARTS)
def test_different_steps_have_different_keys(one, other) -> None:
    assert (key_of(gathered(one)) == key_of(gathered(other))) == (one == other)


class Device:
    """Records what is run, captured and replayed."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.pools = 0

    def forward(self, step: Gathered) -> None:
        self.did.append(f"forward {step.members[0].step.tokens[0]}")

    def capture(self, call: Callable[[], None]) -> Callable[[], None]:
        self.did.append("capture")
        call()
        return lambda: self.did.append("replay")

    def new_pool(self) -> None:
        self.pools += 1

    def steps(self) -> Steps:
        return Steps(self.forward, self.capture, self.new_pool)


def one(tokens: int, mode: Mode, epoch: int = 1) -> Gathered:
    return gathered({0: (epoch, (tokens,))}, mode)


def test_a_step_is_captured_once_and_then_replayed() -> None:
    device = Device()
    steps = device.steps()
    for mode in (Mode.EAGER, Mode.CAPTURE, Mode.CAPTURE, Mode.REPLAY, Mode.REPLAY):
        steps.run(one(8, mode))
    assert device.did == ["forward 8", "capture", "forward 8", "replay", "replay"]
    figures = steps.figures
    assert (figures.eager, figures.captured, figures.replayed, figures.missing) == (1, 1, 2, 0)


def test_an_eager_step_of_a_captured_size_runs_eagerly() -> None:
    """Attention may run a prefill of as many rows: it moves the same bytes, and nobody announced a replay."""
    device = Device()
    steps = device.steps()
    steps.run(one(8, Mode.CAPTURE))
    steps.run(one(8, Mode.EAGER))
    assert device.did[-1] == "forward 8"


def test_a_missing_graph_is_counted_each_time_and_said_once_per_key(caplog: pytest.LogCaptureFixture) -> None:
    steps = Device().steps()
    with caplog.at_level(logging.WARNING, "afd.workers"):
        for tokens in (8, 8, 4, 8):
            steps.run(one(tokens, Mode.REPLAY))
    assert steps.figures.missing == 4
    assert [record.message.count("no graph for a step") for record in caplog.records] == [1, 1]


def test_graphs_of_a_connection_that_is_gone_are_dropped() -> None:
    device = Device()
    steps = device.steps()
    steps.run(one(8, Mode.CAPTURE))
    steps.run(gathered({1: (2, (8,))}, Mode.CAPTURE))
    assert not steps.stale({0: 1, 1: 2})
    assert not steps.keep({0: 1, 1: 2})
    assert steps.stale({0: 3, 1: 2})
    assert steps.keep({0: 3, 1: 2})
    assert list(steps.keys()) == [((1, 2, (8,)),)]
    assert device.pools == 0
    assert steps.keep({})
    assert device.pools == 1


def test_ranks_that_captured_alone_get_a_graph_of_their_own_once_they_are_served_together() -> None:
    device = Device()
    steps = device.steps()
    for rank, tokens in ((0, 8), (0, 4), (1, 8)):
        steps.run(gathered({rank: (1, (tokens,))}, Mode.CAPTURE))
    device.did.clear()
    for first in (8, 4, 8, 4):
        steps.run(gathered({0: (1, (first,)), 1: (1, (8,))}))
    assert device.did == [
        *["forward 8", "capture", "forward 8"],
        *["forward 4", "capture", "forward 4"],
        "replay",
        "replay",
    ]
    figures = steps.figures
    assert (figures.composed, figures.eager, figures.replayed, figures.missing) == (2, 2, 2, 0)
    steps.run(gathered({0: (1, (8,)), 1: (1, (2,))}))
    assert figures.missing == 1
    assert steps.keep({0: 1, 1: 2})
    assert len(list(steps.keys())) == 2


def test_no_more_than_so_many_graphs_of_ranks_that_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afd_workers.graphs.MOST_COMPOSED", 1)
    steps = Device().steps()
    for rank, tokens in ((0, 8), (0, 4), (1, 8)):
        steps.run(gathered({rank: (1, (tokens,))}, Mode.CAPTURE))
    for first in (8, 4, 4):
        steps.run(gathered({0: (1, (first,)), 1: (1, (8,))}))
    assert (steps.figures.composed, steps.figures.missing) == (1, 2)


def test_what_attention_ranks_bring_along_is_captured_when_it_first_comes() -> None:
    device = Device()
    steps = Steps(device.forward, device.capture, device.new_pool, lasting=True)
    steps.run(one(4, Mode.REPLAY))
    steps.run(one(4, Mode.REPLAY))
    assert device.did == ["forward 4", "capture", "forward 4", "replay"]
    assert steps.figures.missing == 0
