"""The examples run as a reader runs them, and need nothing but torch and afd-connectors."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))
ALLOWED = {"torch", "afd_connectors", *sys.stdlib_module_names}


def test_split_moe_says_that_split_equals_whole() -> None:
    (example,) = EXAMPLES
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("split equals whole: 2 layers of 4 experts, 8 rows")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_short_and_import_no_engine(example: Path) -> None:
    text = example.read_text()
    assert len(text.splitlines()) <= 60
    imported = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    assert imported <= ALLOWED
