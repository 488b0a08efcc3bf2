"""Slips on the command lines of the tools are usage errors, said before anything is made."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def said(*command: str) -> tuple[int, str]:
    """(exit status, standard error) of a tool."""
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env={**os.environ, "PYTHONPATH": ":".join([str(ROOT), *sys.path])},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


def test_an_argument_after_all_is_a_slip() -> None:
    status, error = said("tools/dev.py", "all", "x")
    assert status == 2
    assert "Expected no argument after all, found x: give it to one command." in error


@pytest.mark.parametrize("option", ["--layers=0", "--shards=-1", "--shards=many"])
def test_a_toy_checkpoint_has_at_least_one_of_each(option: str, tmp_path: Path) -> None:
    status, error = said("-m", "tools.toy_checkpoint", "qwen3-moe", str(tmp_path), option)
    assert status == 2
    assert f"argument {option.split('=')[0]}: " in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("below", ["", "inside"])
def test_a_toy_checkpoint_is_a_folder(below: str, tmp_path: Path) -> None:
    file = tmp_path / "taken"
    file.touch()
    status, error = said("-m", "tools.toy_checkpoint", "qwen3-moe", str(file / below))
    assert status == 2
    assert f"expected a folder to write into, found a file: {file}" in error


@pytest.mark.parametrize(
    ("tool", "option", "found"),
    [
        ("tools.bench_topologies", "--prompts=0", "argument --prompts: expected a number of at least 1, found 0"),
        ("tools.bench_topologies", "--parts=native1", "Expected a split such as 2A2F, found 'native1'"),
        ("tools.bench_topologies", "--parts=99A99F", "processors, found 198 in 99A99F: name a smaller topology"),
        ("tools.bench_topologies", "--json=nowhere/x.json", "expected a file in a folder that exists, found nowhere"),
        ("tools.token_agreement", "--tokens=-1", "argument --tokens: expected a number of at least 1, found -1"),
        ("tools.gpu.bench_serve_gpu", "--concurrency=0", "expected a number of at least 1, found 0"),
        ("tools.bench_step", "--rounds=0", "argument --rounds: expected a number of at least 1, found 0"),
        ("tools.gpu.dbo", "--rows=1.5", "argument --rows: expected a number of at least 1, found 1.5"),
        ("tools.bench_start", "--runs=x", "argument --runs: expected a number of at least 1, found x"),
        ("tools.gpu.parity", "--compiled=[1]", "argument --compiled: expected a JSON object such as {}, found '[1]'"),
        ("tools.gpu.dbo", "--rows=0", "argument --rows: expected a number of at least 1, found 0"),
        ("tools.gpu.bench_hop_gpu", "--sizes=0", "argument --sizes: expected a number of at least 1, found 0"),
        ("tools.bench_step", "--family=nope", "argument --family: invalid choice: 'nope'"),
        ("tools.bench_step", "--section=[1]", "expected a JSON object such as {}, found '[1]'"),
    ],
)
def test_a_benchmark_says_so_before_it_starts_a_server(tool: str, option: str, found: str) -> None:
    status, error = said("-m", tool, option)
    assert status == 2
    assert found in " ".join(error.split())


def test_whole_numbers_of_tools_have_a_least() -> None:
    """Or one that is none ends in a traceback of what divides by it; a seed and a port may be 0."""
    options = [
        (file.relative_to(ROOT), ast.unparse(node))
        for file in sorted((ROOT / "tools").rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".add_argument")
    ]
    assert any("type=positive" in option for _, option in options)
    plain = [(file, option) for file, option in options if "type=int" in option]
    assert [(file, option) for file, option in plain if "'--seed'" not in option and "'--port'" not in option] == []
