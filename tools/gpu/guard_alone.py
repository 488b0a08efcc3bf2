"""Times what attention does in each step so that the step can be run again: copies of its inputs, and a witness."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from afd_workers.cuda_failover import Failover

ROUNDS = 500


class Attention(Protocol):
    """What is used of an attention worker."""

    _failover: Failover


def microseconds(worker: Attention) -> dict[str, float]:
    """{"guard_host_us", "guard_device_us"} per step."""
    import torch

    failover = worker._failover
    shadows, witness = failover._shadows, failover._port.witness

    def guard() -> None:
        shadow = shadows.take()
        witness()()
        shadows.give(shadow)

    with torch.inference_mode():
        for _ in range(20):
            guard()
        host = _timed(guard, torch.cuda.synchronize)
        device = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        device[0].record()
        for _ in range(ROUNDS):
            guard()
        device[1].record()
        torch.cuda.synchronize()
    return {"guard_host_us": host, "guard_device_us": 1000 * device[0].elapsed_time(device[1]) / ROUNDS}


def _timed(call: Callable[[], None], settle: Callable[[], None]) -> float:
    settle()
    started = time.perf_counter()
    for _ in range(ROUNDS):
        call()
    spent = time.perf_counter() - started
    settle()
    return 1e6 * spent / ROUNDS
