"""The arithmetic of shared rows: a partition, as even as can be, and the same on every rank."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from afd_models.shares import largest, share

rows, sizes = st.integers(0, 100_000), st.integers(1, 64)


@given(rows, sizes)
def test_shares_cover_all_rows_once_in_the_order_of_the_ranks(count: int, size: int) -> None:
    blocks = [share(count, rank, size) for rank in range(size)]
    assert blocks[0][0] == 0
    assert blocks[-1][1] == count
    assert all(before[1] == after[0] for before, after in pairwise(blocks))


@given(rows, sizes)
def test_shares_differ_by_at_most_one_row_and_the_first_is_a_largest(count: int, size: int) -> None:
    lengths = [stop - start for start, stop in (share(count, rank, size) for rank in range(size))]
    assert max(lengths) - min(lengths) <= 1
    assert lengths[0] == max(lengths) == largest(count, size)


@given(st.integers(0, 63), sizes)
def test_with_fewer_rows_than_ranks_some_have_none_and_rank_0_has_the_only_one(count: int, size: int) -> None:
    lengths = [stop - start for start, stop in (share(count, rank, size) for rank in range(size))]
    assert sum(length == 0 for length in lengths) == max(0, size - count)
    if count == 1:
        assert lengths[0] == 1
