"""Which steps are served together: all that are there, after a bounded wait for those of last time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from afd_connectors.gather_steps import Choice, Waiting, choose
from afd_connectors.step import Mode

MODES = st.sampled_from(list(Mode))
WAITING = st.lists(
    st.builds(Waiting, st.integers(0, 7), MODES, st.floats(0, 10)), max_size=6, unique_by=lambda each: each.peer
)
PEERS = st.sets(st.integers(0, 7), max_size=6)


def test_nobody_waits() -> None:
    assert choose([], [1, 2], 5.0) == Choice(())


def test_a_companion_is_waited_for_and_then_no_more() -> None:
    waiting = [Waiting(0, Mode.EAGER, 1.0)]
    assert choose(waiting, [0, 1], 1.0, 0.5) == Choice((), 0.5)
    assert choose(waiting, [0, 1], 1.5, 0.5) == Choice((0,))
    assert choose(waiting, [0], 1.0, 0.5) == Choice((0,))


def test_a_capture_is_alone_and_in_its_turn() -> None:
    capture, replay = Waiting(1, Mode.CAPTURE, 1.0), Waiting(0, Mode.REPLAY, 2.0)
    assert choose([capture, replay], [0, 1], 9.0) == Choice((1,))
    assert choose([capture, replay._replace(since=0.5)], [0], 9.0) == Choice((0,))


@given(WAITING, PEERS, st.floats(0, 20))
def test_a_choice_is_ascending_and_only_of_those_who_wait(waiting, companions, now) -> None:
    choice = choose(waiting, companions, now)
    assert list(choice.peers) == sorted(set(choice.peers))
    assert set(choice.peers) <= {each.peer for each in waiting}
    captures = {each.peer for each in waiting if each.mode is Mode.CAPTURE}
    assert len(choice.peers) == 1 or not captures & set(choice.peers)


@given(WAITING, PEERS)
def test_nobody_waits_for_ever(waiting, companions) -> None:
    assert bool(choose(waiting, companions, 100.0).peers) == bool(waiting)


@given(WAITING, PEERS, st.floats(0, 20))
def test_the_oldest_is_in_every_choice(waiting, companions, now) -> None:
    choice = choose(waiting, companions, now)
    if choice.peers:
        oldest = min(waiting, key=lambda each: (each.since, each.peer))
        assert oldest.peer in choice.peers
