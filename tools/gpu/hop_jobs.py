"""What the processes of hop benchmarks are asked with, and how they take the time of what a graph does."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable
from itertools import pairwise
from statistics import median, quantiles

import torch

from afd_workers.cuda_ffn import own_stream
from tools.gpu.children import answers, say


def timed(replay: Callable[[], None], trips: int, rounds: int) -> dict[str, object]:
    """Microseconds one way, p50 and p99 over replays of `trips` round trips."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
    for event in events[:-1]:
        event.record()
        replay()
    events[-1].record()
    events[-1].synchronize()
    found = [1e3 * begin.elapsed_time(end) / trips / 2 for begin, end in pairwise(events[2:])]
    return {"p50": median(found), "p99": quantiles(found, n=100)[98]}


def serve_jobs(kind: Callable[..., object]) -> None:
    """Answers jobs, each with the method that it names, until standard input ends. kind: made from the command line."""
    out = answers()
    torch.cuda.set_device(0)
    with torch.inference_mode(), own_stream(torch.device("cuda", 0)):
        started = time.perf_counter()
        side = kind(**json.loads(sys.argv[1]))
        say(out, {"ready": True, "s": time.perf_counter() - started})
        for line in sys.stdin:
            job = json.loads(line)
            try:
                answer = getattr(side, job.pop("op"))(**job)
            except Exception as error:  # noqa: BLE001  # told to the parent, which goes on with the next way
                traceback.print_exc()
                answer = {"failed": repr(error)}
            say(out, answer)
