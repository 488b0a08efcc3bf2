"""What an FFN rank computes while attention works never makes attention wait twice in a row."""

from __future__ import annotations

from itertools import pairwise

import pytest

from afd_connectors import awake
from afd_connectors.awake import AWAKE_S
from afd_workers.rehearsal import (
    AT_ONCE_S,
    GAPS,
    LENGTHS,
    PAUSE_EXCHANGES,
    PAUSE_STEPS,
    SLACK_S,
    Rehearsal,
)

LENGTH, GAP = 0.0004, 0.0008  # of a rehearsal, and between an answer and the next exchange
TAKING_IN = 0.00002  # of an exchange that is there
LAYERS = tuple(range(1, 2 * GAPS))


class Rank:
    """An FFN rank whose clock the test sets; computed: the layers that it rehearsed."""

    def __init__(self) -> None:
        self.now, self.seq, self.late, self.computed = 10.0, 0, 0, list[int]()
        following = dict(pairwise(LAYERS))
        self.rehearsal = Rehearsal(self._compute, "row", 2, following, lambda: self.now)  # type: ignore[arg-type]

    def _compute(self, layer: int, _row: object) -> None:
        self.computed.append(layer)
        self.now += LENGTH

    def announced(self, then: float = 2 * AT_ONCE_S) -> None:
        """A step is announced, and its first exchange comes ``then`` seconds after the rehearsal."""
        self.seq += 1
        self.rehearsal()
        self.now += then
        self.rehearsal.arrived(self.seq)

    def exchange(
        self, layer: int, gap: float = GAP, *, woken_late_by: float = 0.0, taking_in: float = TAKING_IN
    ) -> float | None:
        """Answers ``layer``; the next comes after ``gap`` and takes a while to take in. Returns what spare_s said."""
        self.rehearsal.answered(layer)
        comes, spare, late = self.now + gap, self.rehearsal.spare_s(), False
        if spare is not None and self.now + spare + woken_late_by < comes:
            self.now += spare + woken_late_by
            late = self.rehearsal.between() and self.now >= comes
            self.late += late
        self.now = max(self.now, comes) + taking_in
        self.rehearsal.arrived(self.seq, late=late)
        return spare

    def step(self, gap: float = GAP) -> None:
        """A whole step."""
        self.announced()
        for layer in LAYERS[:-1]:
            self.exchange(layer, gap)
        self.rehearsal.answered(LAYERS[-1])


def test_one_is_made_per_step_while_exchanges_come_after_its_end() -> None:
    rank = Rank()
    for step in range(1, 4):
        rank.announced()
        assert rank.computed == [2] * step


def test_after_one_that_an_exchange_had_to_wait_for_there_is_a_pause() -> None:
    rank = Rank()
    rank.announced(AT_ONCE_S / 2)
    for _ in range(PAUSE_STEPS):
        rank.announced()
    assert rank.computed == [2]
    rank.announced()
    assert rank.computed == [2, 2]


def test_between_exchanges_the_layer_that_comes_next_is_rehearsed_and_ends_before_it_comes() -> None:
    rank = Rank()
    rank.announced()
    for layer in LAYERS[:GAPS]:
        assert rank.exchange(layer) is None  # how soon the next comes is not known yet
    for layer in LAYERS[GAPS:-1]:
        assert rank.exchange(layer) == pytest.approx(GAP + TAKING_IN - LENGTH - SLACK_S)
    assert rank.computed == [2, *LAYERS[GAPS + 1 :]]


def test_after_the_last_layer_nothing_is_rehearsed_until_a_step_is_announced() -> None:
    rank = Rank()
    rank.step()
    rank.computed.clear()
    assert rank.rehearsal.spare_s() is None
    rank.rehearsal.arrived(99)  # an attention rank that is no longer alone: its steps are not announced here
    assert [rank.exchange(layer) for layer in LAYERS[:-1]] == [None] * (len(LAYERS) - 1)
    assert rank.computed == []


def test_where_the_next_exchange_comes_sooner_than_one_is_computed_there_is_none() -> None:
    rank = Rank()
    rank.step(LENGTH)
    rank.step(LENGTH)
    assert rank.computed == [2, 2]


def test_one_that_the_next_exchange_had_to_wait_for_is_followed_by_a_pause() -> None:
    rank = Rank()
    rank.step()
    rank.announced()
    assert rank.exchange(LAYERS[0], GAP - SLACK_S) is not None  # there when the rehearsal ends
    assert rank.late == 1
    for layer in LAYERS[1 : 1 + PAUSE_EXCHANGES]:
        assert rank.exchange(layer) is None
    assert rank.exchange(LAYERS[1 + PAUSE_EXCHANGES]) is not None


def test_one_hiccup_of_a_rehearsal_or_of_a_gap_does_not_count_and_two_do() -> None:
    rank = Rank()
    rank.step()
    for _ in range(LENGTHS):
        rank.announced()
    rank.rehearsal._lengths.append(GAP)
    rank.rehearsal._gaps.append(LENGTH)
    assert rank.exchange(LAYERS[0]) == pytest.approx(GAP + TAKING_IN - LENGTH - SLACK_S)
    rank.rehearsal._lengths.extend([GAP, GAP])
    assert [rank.exchange(layer) for layer in LAYERS[1:3]] == [None, None]  # nothing is learned while nothing is run
    for _ in range(LENGTHS - 1):
        rank.announced()
    assert rank.exchange(LAYERS[0]) is not None
    rank.rehearsal._gaps.extend([LENGTH, LENGTH])
    assert rank.exchange(LAYERS[1]) is None


def test_who_shares_its_processor_rehearses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank()
    rank.step()
    rank.computed.clear()
    monkeypatch.setattr(awake, "_crowded_until", float("inf"))
    rank.step()
    assert rank.computed == []


def test_exchanges_that_take_long_to_take_in_do_not_wait_for_ever() -> None:
    rank = Rank()
    rank.step()
    rank.computed.clear()
    for _ in range(100):
        rank.announced()
        for layer in LAYERS[:-1]:
            rank.exchange(layer, taking_in=4 * SLACK_S)
        rank.rehearsal.answered(LAYERS[-1])
    exchanges = 100 * (len(LAYERS) - 1)
    assert rank.late < exchanges / 50
    assert len(rank.computed) - 100 > exchanges / 2


def test_a_wait_that_ended_too_late_is_not_followed_by_a_rehearsal() -> None:
    rank = Rank()
    rank.step()
    rank.announced()
    rank.computed.clear()
    assert rank.exchange(LAYERS[0], woken_late_by=SLACK_S) is not None
    assert rank.computed == []
    assert rank.exchange(LAYERS[1]) is not None
    assert rank.computed == [LAYERS[2]]


def test_a_gap_that_is_slept_through_is_not_rehearsed_in() -> None:
    rank = Rank()
    rank.step(2 * AWAKE_S)
    rank.step(2 * AWAKE_S)
    assert rank.computed == [2, 2]


def test_another_step_that_nobody_announced_alone_is_not_rehearsed_in() -> None:
    rank = Rank()
    rank.step()
    rank.announced()
    rank.computed.clear()
    rank.rehearsal.answered(LAYERS[0])
    rank.seq += 1  # of another rank: its predecessor left in the middle of a step
    rank.now += GAP
    rank.rehearsal.arrived(rank.seq)
    assert [rank.exchange(layer) for layer in LAYERS[1:-1]] == [None] * (len(LAYERS) - 2)
    assert rank.computed == []
