"""All processes of a tensor-parallel FFN rank compute the same exchanges, and none outlives another for long."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
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


@pytest.mark.parametrize(("victim", "role"), [(0, "idle"), (0, "busy"), (1, "idle"), (1, "busy")])
@pytest.mark.parametrize(
    ("fault", "how", "within_s"),
    [(signal.SIGKILL, "ended", 5.0), (signal.SIGSTOP, r"has stood still for \d s", 3 * LIMIT_S + 5.0)],
    ids=["killed", "stopped"],
)
def test_when_one_is_lost_the_other_says_so_and_ends(
    tmp_path: Path, victim: int, role: str, fault: signal.Signals, how: str, within_s: float
) -> None:
    with team(tmp_path, role) as members:
        begun, other = time.monotonic(), members[1 - victim]
        members[victim].signal(fault)
        said = other.hear_last()
        assert time.monotonic() - begun < within_s
        assert other.process.exitcode == EXIT_CODE
        assert re.fullmatch(f"expected its {SIZE} processes, found that process {victim} {how}", str(said)), said


def test_a_short_stop_is_nobodys_end(tmp_path: Path) -> None:
    with team(tmp_path, "busy") as members:
        members[1].signal(signal.SIGSTOP)
        time.sleep(LIMIT_S / 2)
        members[1].signal(signal.SIGCONT)
        time.sleep(2 * LIMIT_S)
        assert [member.process.exitcode for member in members] == [None] * SIZE
