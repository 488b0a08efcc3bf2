"""All processes of a tensor-parallel FFN rank compute the same exchanges, and none outlives another for long."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.torch.workers.member import GROUP_S

SIZE, START_S = 2, 60.0
#: Layers 0 to 2 with 1, 3 and 2 rows of two ones, times 1 on the first process and 2 on the second.
COMPUTED = ["0 6", "1 18", "2 12"]


@contextmanager
def team(folder: Path, role: str) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes, killed at the end."""
    members = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.torch.workers.member", str(rank), str(SIZE), str(folder / "store"), role],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(SIZE)
    ]
    try:
        yield members
    finally:
        for member in members:
            member.kill()
            member.communicate(timeout=10)


def test_a_follower_computes_what_the_lead_computes_and_ends_with_it(tmp_path: Path) -> None:
    with team(tmp_path, "end") as members:
        for member in members:
            out, err = member.communicate(timeout=START_S)
            assert (member.returncode, out.split("\n")[:-1]) == (0, [*COMPUTED, "end"]), err


@pytest.mark.parametrize("victim", [0, 1])
def test_when_one_is_killed_the_other_fails_at_once(tmp_path: Path, victim: int) -> None:
    with team(tmp_path, "idle") as members:
        for member in members:
            assert member.stdout is not None
            assert [member.stdout.readline().strip() for _ in COMPUTED] == COMPUTED
        members[victim].kill()
        started = time.monotonic()
        _, err = members[1 - victim].communicate(timeout=GROUP_S / 2)
        assert time.monotonic() - started < GROUP_S / 2
        assert members[1 - victim].returncode != 0
        assert "RuntimeError" in err or "DistBackendError" in err or "Connection" in err
