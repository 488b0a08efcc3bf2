"""All processes of a tensor-parallel FFN rank compute the same exchanges, and none outlives another for long."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from afd_workers.ending import EXIT_CODE
from tests.torch.workers.member import COMPUTED, LIMIT_S, SIZE, Member


@contextmanager
def team(folder: Path, role: str) -> Iterator[list[Member]]:
    """The processes after their three exchanges, killed at the end."""
    members: list[Member] = []
    try:
        members += (Member(rank, folder / "store", role) for rank in range(SIZE))
        for member in members:
            assert [member.hear() for _ in COMPUTED] == COMPUTED
        yield members
    finally:
        for member in members:
            member.end()


def test_a_follower_computes_what_the_lead_computes_and_ends_with_it(tmp_path: Path) -> None:
    with team(tmp_path, "end") as members:
        for member in members:
            assert member.hear_last() is None
            assert member.process.exitcode == 0


CASES = [(victim, role) for victim in range(SIZE) for role in ("idle", "busy")]


@pytest.mark.parametrize(("victim", "role"), CASES)
def test_when_one_is_killed_the_other_says_so_and_ends(tmp_path: Path, victim: int, role: str) -> None:
    with team(tmp_path, role) as members:
        begun = time.monotonic()
        members[victim].signal(signal.SIGKILL)
        says_so_and_ends(members[1 - victim], f"process {victim} ended", begun + 5.0)


def test_when_one_stops_the_other_says_so_and_ends(tmp_path: Path) -> None:
    """Of four teams at once, since each takes its time to be sure."""
    with ExitStack() as stack:
        teams = []
        for at, (victim, role) in enumerate(CASES):
            (tmp_path / str(at)).mkdir()
            teams.append((victim, stack.enter_context(team(tmp_path / str(at), role))))
        begun = time.monotonic()
        for victim, members in teams:
            members[victim].signal(signal.SIGSTOP)
        for victim, members in teams:
            stands = rf"process {victim} has stood still for \d s"
            says_so_and_ends(members[1 - victim], stands, begun + 3 * LIMIT_S + 5.0)


def says_so_and_ends(other: Member, what: str, until: float) -> None:
    """Whether a process ended by itself in time and said why."""
    said = other.hear_last()
    assert time.monotonic() < until
    assert other.process.exitcode == EXIT_CODE
    assert re.fullmatch(f"expected its {SIZE} processes, found that {what}", str(said)), said


def test_a_short_stop_is_nobodys_end(tmp_path: Path) -> None:
    with team(tmp_path, "busy") as members:
        members[1].signal(signal.SIGSTOP)
        time.sleep(LIMIT_S / 2)
        members[1].signal(signal.SIGCONT)
        time.sleep(2 * LIMIT_S)
        assert [member.process.exitcode for member in members] == [None] * SIZE
