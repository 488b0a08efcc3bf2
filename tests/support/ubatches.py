"""vLLM's real microbatch threads on a machine without a CUDA device: its streams and events stand still."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from vllm.config import VllmConfig


class Stream:
    """A stream of which nothing is asked but whether it is the same one."""

    def __init__(self, device: object = None) -> None:
        self.device = device

    def wait_event(self, event: Event) -> None:
        return

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()


class Event:
    """See Stream."""

    def record(self, stream: Stream | None = None) -> None:
        return


def stand_in(monkeypatch: pytest.MonkeyPatch) -> Stream:
    """Puts them where vLLM's modules look them up; returns the one that every thread works on."""
    from vllm.v1.worker import ubatching
    from vllm.v1.worker.gpu import ubatch_utils

    stream = Stream()
    cuda = SimpleNamespace(Stream=Stream, set_stream=lambda _: None, stream=lambda _: nullcontext())
    for module in (ubatching, ubatch_utils):
        monkeypatch.setattr(module, "current_stream", lambda: stream)
        monkeypatch.setattr(module, "torch", Torch(cuda))
    monkeypatch.setattr(ubatch_utils, "create_sm_control_context", lambda _: nullcontext())
    return stream


class Torch:
    """torch with another `cuda`, `Event` and `accelerator`."""

    def __init__(self, cuda: object) -> None:
        self.cuda, self.Event = cuda, Event
        self.accelerator = SimpleNamespace(set_device_index=lambda _: None)

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)


def config(dp: int = 1, dbo: bool = True, decode: int = 32, prefill: int = 512) -> VllmConfig:
    """As much of a configuration as microbatching asks for."""
    from vllm.config import ParallelConfig

    made = VllmConfig()
    made.parallel_config = ParallelConfig()
    parallel = made.parallel_config
    parallel.data_parallel_size, parallel.enable_dbo = dp, dbo
    parallel.dbo_decode_token_threshold, parallel.dbo_prefill_token_threshold = decode, prefill
    return made
