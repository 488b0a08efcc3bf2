"""docs/map.md is what the docstrings say now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "map.py"


@pytest.mark.timeout(60)
def test_map_is_current() -> None:
    ran = subprocess.run([sys.executable, TOOL, "--check"], capture_output=True, text=True, timeout=30)
    assert ran.returncode == 0, f"docs/map.md is not current; run: python3 tools/map.py\n{ran.stderr}"
