"""How the ranks of a tensor-parallel attention group divide their rows follows from whom they reach."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_compat.config import Config
from afd_connectors import registry
from afd_connectors.layout import Layout, role_rank
from afd_connectors.shape import Shape
from afd_connectors.transports.nvlink.connector import Nvlink
from afd_workers import links
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


@pytest.mark.parametrize(
    ("connector", "router", "tensor", "near", "chosen"),
    [
        ("auto", 8, 1, {"graph"}, "far"),
        ("auto", 8, 1, {"graph", "router"}, "near"),
        ("auto", 0, 1, {"graph"}, "near"),
        ("auto", 60, 1, {"graph", "router"}, "far"),  # of which one row does not fit
        ("auto", 0, 2, {"graph"}, "far"),
        ("auto", 0, 2, set(), "near"),  # a tensor-parallel group's transfers are in nobody's graphs
        ("near", 8, 2, {"graph"}, "near"),  # asked for by name, and refused by its own sentence
    ],
)
def test_auto_picks_one_that_fits(
    connector: str, router: int, tensor: int, near: set[str], chosen: str,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    kinds = {
        "near": SimpleNamespace(name="near", features=near, misfit=Nvlink.misfit),
        "far": SimpleNamespace(name="far", features={"router"}),
    }

    def resolve(name: str, device: str, settings: object = None) -> SimpleNamespace:
        assert device == "cuda"
        return kinds[name if name != "auto" else "far" if settings is None else "near"]

    monkeypatch.setattr(registry, "resolve", resolve)
    config = Config.parse({"role": "ffn", "connector": connector}, {})
    shape = Shape(4, 8, "bfloat16", 2, router=router)
    with caplog.at_level("INFO", "afd.workers"):
        found = links._kind(config, "cuda", shape, links.settings(config), tensor)
    assert found is kinds[chosen]  # type: ignore[comparison-overlap]
    assert ("connector 'auto' chooses 'far' and not 'near': it " in caplog.text) == (chosen == "far")


def test_auto_asks_the_shape_for_nothing_where_there_is_no_nearer_one() -> None:
    config = Config.parse({"role": "ffn", "host": "10.1.2.3", "secret": "s"}, {})
    shape = Shape(4, 8, "bfloat16", 2, router=60)
    assert links._kind(config, "cuda", shape, links.settings(config), 2).name == "nccl-p2p"
