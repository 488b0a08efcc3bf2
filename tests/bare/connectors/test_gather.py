"""The rule that batches the rows of several peers: bounded, fair, free of deadlock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from afd_connectors.gather import Ready, Underway, choose


def at(peer: int, layer: int, since: float = 0.0, previous: int = -1, stage: int = 0, router: int = 0) -> Ready:
    return Ready(peer, stage, layer, previous, router, since)


def test_nothing() -> None:
    assert choose([], [Underway(0, 0, -1)], 5.0).members == ()


def test_peers_at_one_layer_go_together_in_order() -> None:
    assert choose([at(2, 3), at(0, 3), at(1, 4)], [], 0.0).members == (at(0, 3), at(2, 3))


def test_the_lowest_layer_goes_first() -> None:
    assert choose([at(0, 7), at(1, 2)], [], 0.0).members == (at(1, 2),)


def test_kinds_of_logits_and_stages_are_not_mixed() -> None:
    assert len(choose([at(0, 3, router=1), at(1, 3)], [], 0.0).members) == 1
    assert len(choose([at(0, 3, stage=1), at(1, 3)], [], 0.0).members) == 1


def test_laggards_are_waited_for_a_little() -> None:
    waiting = choose([at(0, 3, since=10.0, previous=2)], [Underway(1, 0, 2)], 10.0004, 0.001)
    assert not waiting.members
    assert waiting.wait_s is not None
    assert 0.0005 < waiting.wait_s <= 0.001
    assert choose([at(0, 3, since=10.0, previous=2)], [Underway(1, 0, 2)], 10.002, 0.001).members


def test_peers_elsewhere_are_not_waited_for() -> None:
    elsewhere = [Underway(1, 0, 5), Underway(2, 1, 2), Underway(0, 0, 2)]
    assert choose([at(0, 3, since=10.0, previous=2)], elsewhere, 10.0).members


ready = st.lists(
    st.builds(
        Ready,
        st.integers(0, 7),
        st.integers(0, 1),
        st.integers(0, 5),
        st.integers(-1, 4),
        st.integers(0, 2),
        st.floats(0, 9),
    ),
    max_size=8,
    unique_by=lambda r: (r.peer, r.stage),
)
underway = st.lists(st.builds(Underway, st.integers(0, 7), st.integers(0, 1), st.integers(-1, 5)), max_size=8)


@given(ready, underway, st.floats(0, 0.1))
def test_a_wait_always_ends(ready: list[Ready], underway: list[Underway], bound: float) -> None:
    choice = choose(ready, underway, 9.0, bound)
    if not ready:
        assert choice == ((), None)
        return
    if not choice.members:
        assert choice.wait_s is not None
        assert 0 < choice.wait_s <= bound + 1e-9
        choice = choose(ready, underway, 9.0 + choice.wait_s + 1e-6, bound)
    assert choice.members
    assert {m.layer for m in choice.members} == {min(r.layer for r in ready)}
    assert [m.peer for m in choice.members] == sorted({m.peer for m in choice.members})
    assert len({(m.layer, m.stage, m.router) for m in choice.members}) == 1
