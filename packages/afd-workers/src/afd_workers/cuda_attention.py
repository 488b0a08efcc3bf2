"""What the attention role adds to vLLM's own worker where steps run from graphs and failures show later."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vllm.v1.outputs import AsyncModelRunnerOutput

from afd_workers.dbo import stage_tokens

if TYPE_CHECKING:
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor, CudaGraphManager

    from afd_models.exchange import Exchange


class Witnessed(AsyncModelRunnerOutput):
    """An output of which nobody sees a token before `check` has passed, which raises when the step may be void."""

    def __init__(self, native: AsyncModelRunnerOutput, check: Callable[[], None]) -> None:
        self._native, self._check = native, check

    def get_output(self) -> ModelRunnerOutput:
        """See AsyncModelRunnerOutput."""
        output = self._native.get_output()
        self._check()
        return output


def witnessed(output: object, check: Callable[[], None]) -> object:
    """What a step produced, to be read only after `check`."""
    if isinstance(output, AsyncModelRunnerOutput):
        return Witnessed(output, check)
    if output is not None:
        check()
    return output


def announce_replays(manager: CudaGraphManager | None, exchange: Exchange, exchanges: int) -> None:
    """From now on this manager's replays are announced; to be called for every manager that vLLM makes.

    exchanges: of one step.
    """
    if manager is None:
        return
    native = manager.run_fullgraph

    def run_fullgraph(desc: BatchExecutionDescriptor) -> object:
        exchange.replay(stage_tokens(desc), exchanges)
        return native(desc)

    manager.run_fullgraph = run_fullgraph
