"""Where the attention worker lets vLLM split steps: while KV caches are set up, and in each step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from afd_compat.patches.gpu_mrv2_ubatching import build_at_one_rank, split_at_one_rank
from afd_compat.scoped import Scope
from afd_workers.dbo import SideStream, Ubatches
from afd_workers.dbo_timing import Awaiting, Clock

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    from afd_compat.config import Config
    from afd_models.exchange import Exchange
    from afd_workers.dbo_rule import Decider


class Overlap:
    """building: to be entered around what makes vLLM's runner of microbatches."""

    building: AbstractContextManager[object] = nullcontext()

    def begin(self, exchange: Exchange, device: torch.device) -> None:
        """The model is loaded."""

    def step(self, scheduled: SchedulerOutput) -> AbstractContextManager[object]:  # noqa: ARG002
        """To be entered around a step, which may be split inside."""
        return nullcontext()

    def captured(self, runner: GPUModelRunner, awaiting: Awaiting, check: Callable[[], None]) -> None:
        """Graphs are captured. awaiting: to be entered around waits for the device, which then end in time; `check`
        raises when a peer was lost meanwhile.
        """


class On(Overlap):
    """See Overlap; with dual-batch overlap."""

    def __init__(self, config: Config) -> None:
        self._measured = config.dbo_rule == "measured"
        self.building, self._splitting = Scope(build_at_one_rank), Scope(split_at_one_rank)
        self._decider: Decider | None = None

    def begin(self, exchange: Exchange, device: torch.device) -> None:
        """See Overlap."""
        exchange.split(Ubatches(SideStream(device)))

    def step(self, scheduled: SchedulerOutput) -> AbstractContextManager[object]:
        """See Overlap."""
        if self._decider is not None:
            self._decider.step(scheduled.scheduled_cached_reqs.num_computed_tokens)
        return self._splitting

    def captured(self, runner: GPUModelRunner, awaiting: Awaiting, check: Callable[[], None]) -> None:
        """See Overlap; finds out which steps are worth splitting, unless vLLM's thresholds are to be taken."""
        if self._measured and runner.ubatch_runner is not None:
            self._decider = Clock(runner, self._splitting, awaiting).decider()
            check()


def overlap_of(vllm_config: VllmConfig, config: Config) -> Overlap:
    """What the configuration asks for."""
    return On(config) if vllm_config.parallel_config.use_ubatching else Overlap()
