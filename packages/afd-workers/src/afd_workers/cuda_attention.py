"""What the attention role adds to vLLM's own worker where steps run from graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afd_workers.dbo import stage_tokens

if TYPE_CHECKING:
    from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor, CudaGraphManager

    from afd_models.exchange import Exchange


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
