"""Slips on the command lines of tools that need torch are usage errors too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOP = "packages/afd-connectors/benchmarks/bench_hop.py"


@pytest.mark.parametrize(
    ("tool", "option", "found"),
    [
        (HOP, "--rounds=0", "expected at least 1 of rounds and turns, found 0 and 1"),
        (HOP, "--sizes=0", "expected rows x width such as 16x7168, found '0'"),
        ("tools/fuzz_connectors.py", "--seconds=nan", "argument --seconds: expected a number above 0, found nan"),
    ],
)
def test_a_slip_is_said_before_anything_starts(tool: str, option: str, found: str) -> None:
    done = subprocess.run(
        [sys.executable, tool, option], cwd=ROOT, env={**os.environ, "PYTHONPATH": ":".join([str(ROOT), *sys.path])},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert found in " ".join(done.stderr.split())
