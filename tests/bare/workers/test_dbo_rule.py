"""Dual-batch overlap switches itself off where it loses: what is timed, what is concluded, what vLLM is told."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_workers.dbo_rule import NEVER, Decider, Rule, Timing, break_even, forced, search

SIZES = st.sets(st.integers(2, 512), min_size=1, max_size=12)
CONTEXTS = (0, 1000)


def timed(rows_at_zero: int, tried: list[int]) -> Callable[[int, int], Timing]:
    """Splitting pays from `rows_at_zero` rows on without context, and from half as many with the most."""

    def one(rows: int, context: int) -> Timing:
        tried.append(rows)
        needed = rows_at_zero if context == 0 else rows_at_zero / 2
        return Timing(rows, context, whole=2.0, split=1.5 if rows >= needed else 3.0)

    return one


@given(SIZES, st.integers(2, 600))
def test_from_the_least_size_on_that_pays_every_larger_one_does(sizes: set[int], pays_from: int) -> None:
    tried: list[int] = []
    rule = search(sizes, CONTEXTS, timed(pays_from, tried))
    for context, least in ((0, pays_from), (CONTEXTS[1], pays_from / 2)):
        assert rule.least(context) == min((rows for rows in sizes if rows >= least), default=NEVER)
    paying = [rows for rows in sizes if rows >= pays_from / 2]
    assert tried[::2] == sorted(sizes, reverse=True)[: len(paying) + 1], "nothing is tried below the first loss"


def test_one_size_is_tried_where_it_always_loses() -> None:
    tried: list[int] = []
    assert search(range(32, 513, 8), CONTEXTS, timed(2000, tried)).least(10**9) == NEVER
    assert tried == [512, 512]


@pytest.mark.parametrize(
    ("lost_at_zero", "won_at_most", "needed"),
    [(0.0, 0.0, 0), (-1.0, 5.0, 0), (1.0, 1.0, 500), (3.0, 1.0, 750), (1.0, 0.0, 1000), (1.0, -0.1, NEVER)],
)
def test_the_context_from_which_on_it_pays(lost_at_zero: float, won_at_most: float, needed: int) -> None:
    tried = [Timing(512, 0, 10.0, 10.0 + lost_at_zero), Timing(512, 1000, 20.0, 20.0 - won_at_most)]
    assert break_even(tried) == needed


@given(st.floats(-5, 5), st.floats(-5, 5))
def test_it_lies_within_what_was_timed(lost: float, won: float) -> None:
    found = break_even([Timing(8, 0, 10.0, 10.0 + lost), Timing(8, 1000, 20.0, 20.0 - won)])
    assert 0 <= found <= 1000 or found == NEVER


def thresholds(decode: int = 32, prefill: int = 512) -> SimpleNamespace:
    return SimpleNamespace(dbo_decode_token_threshold=decode, dbo_prefill_token_threshold=prefill)


def told(each: SimpleNamespace) -> tuple[int, int]:
    return each.dbo_decode_token_threshold, each.dbo_prefill_token_threshold


def test_each_step_is_decided_by_its_rows_and_what_its_requests_have_behind_them() -> None:
    parallel = thresholds()
    decider = Decider(parallel, Rule(((512, 100), (256, 900))), Rule(((8192, 0),)))
    assert told(parallel) == (32, 8192)
    for computed, least in (([], NEVER), ([99, 99], NEVER), ([50, 150], 512), ([900] * 3, 256), ([0, 2000], 256)):
        decider.step(computed)
        assert told(parallel) == (least, 8192)


def test_thresholds_of_the_user_are_only_ever_raised() -> None:
    parallel = thresholds(decode=300, prefill=4096)
    Decider(parallel, Rule(((8, 0),)), Rule(((8, 0),))).step([0])
    assert told(parallel) == (300, 4096)


def test_one_sentence_says_what_was_found(caplog: pytest.LogCaptureFixture) -> None:
    tried = (Timing(512, 0, 15.0, 17.0), Timing(512, 4096, 27.0, 21.0), Timing(256, 0, 12.0, 17.0))
    with caplog.at_level(logging.INFO, "afd.workers"):
        Decider(thresholds(), Rule(((512, 1024),), tried), Rule((), (Timing(8192, 0, 80.0, 90.0),)))
        Decider(thresholds(), None, Rule())
    assert [record.message for record in caplog.records] == [
        (
            "AFD timed dual-batch overlap; it splits decode steps: 512 rows from 1024 tokens of context on (256 rows "
            "with 0 tokens behind them 17.00 ms split, 12.00 whole); other steps: none (8192 rows with 0 tokens behind "
            "them 90.00 ms split, 80.00 whole)."
        ),
        "AFD timed dual-batch overlap; it splits decode steps: as vLLM's threshold says; other steps: none.",
    ]


def test_without_decode_graphs_vllms_own_threshold_stays() -> None:
    parallel = thresholds()
    Decider(parallel, None, Rule()).step([5])
    assert told(parallel) == (32, NEVER)


@pytest.mark.parametrize("split", [True, False])
def test_timing_leaves_the_thresholds_as_they_were_even_after_an_error(split: bool) -> None:
    parallel = thresholds()
    inside = []

    def fails() -> None:
        with forced(parallel, split):
            inside.append(told(parallel))
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert inside == [(2, 2) if split else (NEVER, NEVER)]
    assert told(parallel) == (32, 512)
