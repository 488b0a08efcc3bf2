"""How the ranks of a tensor-parallel attention group divide their rows follows from whom they reach."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from afd_connectors.layout import Layout, role_rank
from afd_workers.links import Placement, one_ffn_rank


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 12), st.data())
def test_a_group_shares_its_rows_only_where_it_reaches_several_ffn_ranks(
    groups: int, size: int, ffn: int, data: st.DataObject
) -> None:
    dp = data.draw(st.integers(0, groups - 1))
    layouts = [
        Layout("attention", role_rank(dp, 0, tp, pcp_size=1, tp_size=size), groups * size, ffn) for tp in range(size)
    ]
    answers = {one_ffn_rank(Placement(dp, tp, size), layout) for tp, layout in enumerate(layouts)}
    assert answers == {len({peer for layout in layouts for peer in layout.peers}) == 1}


@given(st.integers(1, 8), st.integers(1, 8))
def test_one_ffn_rank_is_everybodys(groups: int, size: int) -> None:
    last = Layout("attention", groups * size - 1, groups * size, 1)
    assert one_ffn_rank(Placement(groups - 1, size - 1, size), last)
