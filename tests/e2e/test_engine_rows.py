"""The rows of engine_core and of async DP on whole engines: each case a fresh process that vLLM starts as it likes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from afd_workers.launch.free import free_ports
from tests.support.checkpoints import Checkpoint
from tests.support.prompts import prompts

pytestmark = pytest.mark.timeout(600)
RUN_S = 400.0


def run(module: str, *arguments: str, stdin: str = "") -> dict[str, object]:
    """The object that a script of tests/support prints last; everything it started has ended."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    process = subprocess.Popen(
        [sys.executable, "-m", f"tests.support.{module}", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True, env=env,
    )  # fmt: skip
    try:
        out, err = process.communicate(stdin, timeout=RUN_S)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            process.wait(10)
    assert process.returncode == 0, err[-4000:]
    found: dict[str, object] = json.loads(out.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def ffn(checkpoint: Checkpoint) -> dict[str, object]:
    return run("ffn_engine", str(checkpoint("qwen3-moe")), str(free_ports(1)[0]))


def test_vllms_own_engine_runs_the_ffn_role_unpatched(ffn: dict[str, object]) -> None:
    assert (ffn["engine"], ffn["worker"]) == ("EngineCore", "FFNWorker")
    assert ffn["patched"] == []


def test_no_generation_is_offered_so_the_scheduler_has_nothing_to_do(ffn: dict[str, object]) -> None:
    assert ffn["tasks"] == []
    assert ffn["unfinished"] is False


def test_no_kv_cache_is_allocated_and_no_memory_profiled(ffn: dict[str, object]) -> None:
    assert (ffn["spec"], ffn["groups"], ffn["profiled"]) == (0, 0, 0)
    assert ffn["blocks"] in (0, 1)


def test_the_worker_serves_beside_the_idle_engine(ffn: dict[str, object]) -> None:
    assert ffn["listens"] is True
    assert ffn["dummy"] is None, "what the data-parallel loop asks of an idle rank does nothing"


def test_the_engines_shutdown_ends_the_worker_loop(ffn: dict[str, object]) -> None:
    assert ffn["listens_after"] is False
    assert "afd-ffn-loop" in ffn["ended"]  # type: ignore[operator]


def test_async_ranks_of_one_server_serve_each_at_its_own_pace(checkpoint: Checkpoint) -> None:
    """Spawned engine processes get their patches; vLLM's data-parallel loop on CPU would die at the first request."""
    first, second = prompts(2, 3, 40, seed=1)
    said = run("async_dp", str(Path(checkpoint("qwen3-moe"))), stdin=json.dumps([first, first, second, second]))
    tokens = said["tokens"]
    assert isinstance(tokens, list)
    assert tokens[0] == tokens[1] != tokens[2] == tokens[3]
    assert [len(each) for each in tokens] == [8] * 4
    assert (said["waves"], said["woken"], said["running"]) == ([False], 0, False)
    ranks = said["ranks"]
    assert isinstance(ranks, list)
    assert [(rank["engine"], rank["rank"], rank["index"], rank["size"]) for rank in ranks] == [
        ("EngineCoreProc", 0, 0, 1), ("EngineCoreProc", 1, 1, 1)
    ]  # fmt: skip
    assert all(rank["passes"] >= 8 and rank["without_metadata"] for rank in ranks)
