"""The mapping of ranks is a partition, alike from both sides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_connectors import Layout, role_rank

counts = st.integers(1, 40)


@given(counts, counts)
def test_peers_agree_on_both_sides(attention: int, ffn: int) -> None:
    from_attention = {(a, f) for a in range(attention) for f in Layout("attention", a, attention, ffn).peers}
    from_ffn = {(a, f) for f in range(ffn) for a in Layout("ffn", f, attention, ffn).peers}
    assert from_attention == from_ffn
    assert {a for a, _ in from_attention} == set(range(attention))
    assert {f for _, f in from_attention} == set(range(ffn))


@given(counts, counts)
def test_the_larger_side_is_dealt_in_even_blocks(attention: int, ffn: int) -> None:
    if attention >= ffn:
        blocks = [Layout("ffn", f, attention, ffn).peers for f in range(ffn)]
        assert all(Layout("attention", a, attention, ffn).peers == (a * ffn // attention,) for a in range(attention))
    else:
        blocks = [Layout("attention", a, attention, ffn).peers for a in range(attention)]
    assert [rank for block in blocks for rank in block] == list(range(max(attention, ffn)))
    assert max(map(len, blocks)) - min(map(len, blocks)) <= 1


@given(counts, counts, st.integers(0, 5000), st.data())
def test_split_covers_the_rows(attention: int, ffn: int, rows: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, attention - 1))
    layout = Layout("attention", rank, attention, ffn)
    blocks = layout.split(rows)
    assert tuple(peer for peer, _, _ in blocks) == layout.peers
    assert [start for _, start, _ in blocks] + [rows] == [0] + [stop for _, _, stop in blocks]
    sizes = [stop - start for _, start, stop in blocks]
    assert max(sizes) - min(sizes) <= 1
    for peer, start, stop in blocks:
        assert Layout("ffn", peer, attention, ffn).share(rows) == stop - start


@given(counts, counts)
def test_world_is_ffn_first(attention: int, ffn: int) -> None:
    ranks = [Layout("ffn", f, attention, ffn).world_rank for f in range(ffn)]
    ranks += [Layout("attention", a, attention, ffn).world_rank for a in range(attention)]
    assert ranks == list(range(attention + ffn))
    assert Layout("ffn", 0, attention, ffn).world_size == attention + ffn


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5))
def test_role_ranks_are_dense(dp: int, pcp: int, tp: int) -> None:
    ranks = [role_rank(d, p, t, pcp_size=pcp, tp_size=tp) for d in range(dp) for p in range(pcp) for t in range(tp)]
    assert ranks == list(range(dp * pcp * tp))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("expert", 0, 1, 1), "role must be 'attention' or 'ffn', found 'expert'"),
        (("ffn", 0, 0, 1), "num_attention must be a whole number of at least 1, found 0"),
        (("ffn", 0, 1, -2), "num_ffn must be a whole number of at least 1, found -2"),
        (("attention", 0, 1, 0), "num_ffn must be"),
        (("ffn", 0, True, 1), "num_attention must be"),
        (("ffn", 1, 4, 1), "rank of role ffn must lie in 0..0, found 1"),
        (("attention", -1, 4, 1), "rank of role attention must lie in 0..3, found -1"),
    ],
)
def test_bad_layouts(arguments: tuple[str, int, int, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Layout(*arguments)


def test_wrong_role_for_a_call() -> None:
    with pytest.raises(ValueError, match="only attention ranks split"):
        Layout("ffn", 0, 1, 1).split(3)
    with pytest.raises(ValueError, match="only FFN ranks receive"):
        Layout("attention", 0, 1, 1).share(3)
    with pytest.raises(ValueError, match="rows must be at least 0"):
        Layout("attention", 0, 1, 2).split(-1)


@pytest.mark.parametrize(
    ("ranks", "sizes"), [((0, 0, 2), (1, 2)), ((0, 1, 0), (1, 2)), ((-1, 0, 0), (1, 1)), ((0, 0, 0), (0, 1))]
)
def test_bad_role_ranks(ranks: tuple[int, int, int], sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="found"):
        role_rank(*ranks, pcp_size=sizes[0], tp_size=sizes[1])
