"""Dual-batch overlap switches itself off where it loses: what is timed, what is concluded, what vLLM is told."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_workers.dbo_rule import NEVER, Found, Timing, forced, search, settle

SIZES = st.sets(st.integers(2, 512), min_size=1, max_size=12)


def timed(pays_from: int, tried: list[int]):
    def one(rows: int) -> Timing:
        tried.append(rows)
        return Timing(rows, whole=2.0, split=1.5 if rows >= pays_from else 3.0)

    return one


@given(SIZES, st.integers(2, 600))
def test_the_least_size_from_which_every_size_pays_is_found(sizes: set[int], pays_from: int) -> None:
    tried: list[int] = []
    found = search(sizes, timed(pays_from, tried))
    paying = [rows for rows in sizes if rows >= pays_from]
    assert found.least == min(paying, default=NEVER)
    assert tried == sorted(sizes, reverse=True)[: len(paying) + 1], "nothing is tried below the first loss"


def test_one_loss_is_enough_where_it_always_loses() -> None:
    tried: list[int] = []
    assert search(range(32, 513, 8), timed(513, tried)).least == NEVER
    assert tried == [512]


def test_a_tie_is_no_loss() -> None:
    assert search([64], lambda rows: Timing(rows, 2.0, 2.0)).least == 64


def thresholds(decode: int = 32, prefill: int = 512) -> SimpleNamespace:
    return SimpleNamespace(dbo_decode_token_threshold=decode, dbo_prefill_token_threshold=prefill)


def told(each: SimpleNamespace) -> tuple[int, int]:
    return each.dbo_decode_token_threshold, each.dbo_prefill_token_threshold


def test_thresholds_of_the_user_are_only_ever_raised(caplog: pytest.LogCaptureFixture) -> None:
    parallel = thresholds()
    decode = Found(256, (Timing(512, 19.0, 18.0), Timing(256, 14.0, 13.5), Timing(128, 11.0, 16.0)))
    with caplog.at_level(logging.INFO, "afd.workers"):
        settle(parallel, decode, Found(NEVER, (Timing(8192, 80.0, 90.0),)))
    assert told(parallel) == (256, NEVER)
    (record,) = caplog.records
    assert record.message == (
        "AFD timed dual-batch overlap: decode steps from 256 rows on (512 rows 18.00 ms split, 19.00 whole; 128 rows "
        "16.00 ms split, 11.00 whole), other steps off (8192 rows 90.00 ms split, 80.00 whole)."
    )
    parallel = thresholds(decode=300)
    settle(parallel, Found(256, ()), Found(8, ()))
    assert told(parallel) == (300, 512)


def test_without_decode_graphs_vllms_own_threshold_stays(caplog: pytest.LogCaptureFixture) -> None:
    parallel = thresholds()
    with caplog.at_level(logging.INFO, "afd.workers"):
        settle(parallel, None, Found(NEVER, ()))
    assert told(parallel) == (32, NEVER)
    assert "decode steps by vLLM's threshold, other steps no size to try." in caplog.text


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
