"""Profiler traces of servers under load, through vLLM's own routes, once every request is decoding."""

from __future__ import annotations

import contextlib
import re
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.gpu.servers import Server

ANSWER_S, LOOK_S, RECORD_S = 60.0, 0.1, 0.4
_RUNNING = re.compile(r"^vllm:num_requests_(running|waiting)\{[^}]*\} ([0-9.e+]+)", re.MULTILINE)


def options(folder: Path) -> tuple[str, ...]:
    """Of a server whose traces go to a folder."""
    return ("--profiler-config.profiler=torch", f"--profiler-config.torch_profiler_dir={folder}")


def record(asked: Sequence[Server], others: Sequence[Server], limit_s: float) -> str:
    """Starts and stops the profilers of all servers while those that are asked only decode; a word on what came of it.

    others: FFN servers, which have no requests of their own.
    """
    until = time.monotonic() + limit_s
    while not all(_decoding(server) for server in asked):
        if time.monotonic() > until:
            return f"no trace: not every server was decoding within {limit_s:.0f} s"
        time.sleep(LOOK_S)
    every = [*asked, *others]
    with ThreadPoolExecutor(len(every)) as pool:
        try:
            list(pool.map(lambda server: _post(server, "start_profile"), every))
            time.sleep(RECORD_S)
            list(pool.map(lambda server: _post(server, "stop_profile"), every))
        except OSError as error:
            return f"no trace: {error}"
    return f"traces of {len(every)} servers, {RECORD_S:g} s each"


def _decoding(server: Server) -> bool:
    """Whether requests run there and none waits."""
    counts = {"running": 0.0, "waiting": 0.0}
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{server.url}/metrics", timeout=5) as answer:
        for kind, count in _RUNNING.findall(answer.read().decode()):
            counts[kind] += float(count)
    return counts["running"] > 0 and counts["waiting"] == 0


def _post(server: Server, route: str) -> None:
    request = urllib.request.Request(f"{server.url}/{route}", b"", method="POST")
    with urllib.request.urlopen(request, timeout=ANSWER_S):
        return
