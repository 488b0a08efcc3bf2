"""An "afd" section that vLLM's command line drops is said to be lost, and nothing else is said."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from afd_workers import dropped

AFD, OTHER = '{"afd": {"role": "ffn"}}', '{"mine": 1}'


@pytest.mark.parametrize(
    ("arguments", "beside"),
    [
        (["vllm", "serve", "m"], ""),
        (["vllm", "serve", "m", "--additional-config", AFD], ""),
        (["vllm", "serve", "m", f"--additional_config={AFD}"], ""),
        (["vllm", "--additional-config", OTHER, "--additional-config.afd.role=ffn"], ""),
        (["vllm", "--additional-config", OTHER, "--additional-config", AFD], ""),
        (["vllm", "--additional-config", AFD, "--additional-config", AFD], ""),
        (["vllm", "--additional-config"], ""),
        (["vllm", "--additional-configuration", AFD, "--additional-config.a", "1"], ""),
        (["vllm", "--additional-config.afd.port", "1239", "--additional-config", AFD], "--additional-config.afd.port"),
        (["vllm", f"--additional-config={AFD}", "--additional_config.mine=1"], "--additional-config.mine"),
        (["vllm", "--additional-config", AFD, "--additional-config", OTHER], "another --additional-config"),
        (["vllm", "--additional", AFD, "--additional-config", OTHER], "another --additional-config"),
        (["vllm", "--additional-config", AFD, "--additional_c.mine=1"], "--additional-config.mine"),
        (["vllm", "--a", AFD, "--additional-config", OTHER], ""),
    ],
)
def test_what_vllm_takes_instead_of_a_section(arguments: list[str], beside: str) -> None:
    assert dropped.beside(arguments) == beside


def test_a_lost_section_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "afd.workers"):
        dropped.warn(["vllm", "--additional-config", AFD])
        assert not caplog.records
        dropped.warn(["vllm", "--additional-config", AFD, "--additional-config.mine=1"])
    [record] = caplog.records
    assert record.getMessage() == (
        'Expected one --additional-config, found an "afd" section in one that vLLM drops for '
        "--additional-config.mine: write all keys into one JSON object, that section does not count."
    )


_CHILD = """
import multiprocessing, sys
from afd_workers import dropped
def child():
    dropped.warn(sys.argv)
if __name__ == "__main__":
    child()
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join(60)
"""


def test_only_the_first_process_says_it(tmp_path: Path) -> None:
    script = tmp_path / "start.py"
    script.write_text(_CHILD)
    arguments = [sys.executable, str(script), "--additional-config", AFD, "--additional-config.mine=1"]
    done = subprocess.run(
        arguments, env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.count("that section does not count") == 1
