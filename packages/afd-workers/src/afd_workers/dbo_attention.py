"""Where the attention worker lets vLLM split steps: while KV caches are set up, and in each step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from afd_compat.patches.gpu_mrv2_ubatching import build_at_one_rank, split_at_one_rank
from afd_compat.scoped import Scope
from afd_workers.dbo import SideStream, Ubatches
from afd_workers.dbo_timing import Clock

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    from afd_compat.config import Config
    from afd_models.exchange import Exchange


class Overlap:
    """building: around what makes vLLM's runner of microbatches; stepping: around a step that may be split."""

    building: AbstractContextManager[object] = nullcontext()
    stepping: AbstractContextManager[object] = nullcontext()

    def begin(self, exchange: Exchange, device: torch.device) -> None:
        """The model is loaded."""

    def captured(self, runner: GPUModelRunner, check: Callable[[], None]) -> None:
        """Graphs are captured; `check` raises when a peer was lost meanwhile."""


class On(Overlap):
    """See Overlap; with dual-batch overlap."""

    def __init__(self, config: Config) -> None:
        self._measured = config.dbo_rule == "measured"
        self.building, self.stepping = Scope(build_at_one_rank), Scope(split_at_one_rank)

    def begin(self, exchange: Exchange, device: torch.device) -> None:
        """See Overlap."""
        exchange.split(Ubatches(SideStream(device)))

    def captured(self, runner: GPUModelRunner, check: Callable[[], None]) -> None:
        """See Overlap; finds out from how many rows on overlap pays, unless vLLM's thresholds are to be taken."""
        if self._measured and runner.ubatch_runner is not None:
            Clock(runner, self.stepping).settle()
            check()


def overlap_of(vllm_config: VllmConfig, config: Config) -> Overlap:
    """What the configuration asks for."""
    return On(config) if vllm_config.parallel_config.use_ubatching else Overlap()
