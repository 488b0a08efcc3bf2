"""The attention role's graphs, dropped when the connections they were captured with are lost, captured when needed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from vllm.config import set_current_vllm_config
from vllm.config.compilation import CUDAGraphMode

if TYPE_CHECKING:
    from torch import Tensor
    from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor, ModelCudaGraphManager
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner


class Graphs:
    """A runner's graphs of whole steps. seconds, count: what captures since the start took, and how many."""

    def __init__(self, runner: GPUModelRunner, new_pool: Callable[[], object]) -> None:
        self._runner, self._new_pool = runner, new_pool
        self.seconds, self.count = 0.0, 0

    @property
    def manager(self) -> ModelCudaGraphManager:
        """vLLM's own."""
        return self._runner.cudagraph_manager

    def drop(self) -> None:
        """Frees all; nothing of them may be on the device any more."""
        if self.manager is not None and self.manager.graphs:
            self.manager.graphs.clear()
            self.manager.pool = self._new_pool()  # one whose last graph is gone cannot be used again

    def missing(self, desc: BatchExecutionDescriptor) -> bool:
        """Whether `desc` has to be captured before it can run."""
        return desc not in self.manager.graphs

    def output(self, desc: BatchExecutionDescriptor) -> Tensor:
        """Where the graph of `desc` puts what the model computes."""
        everything = self.manager.hidden_states
        assert everything is not None
        hidden: Tensor = everything[: desc.num_tokens]
        return hidden

    def capture(self, desc: BatchExecutionDescriptor) -> None:
        """Captures one with vLLM's own code, which overwrites the inputs of the step that is being prepared."""
        started = time.perf_counter()
        manager = self.manager
        all_of_them = manager._capture_descs
        manager._capture_descs = {CUDAGraphMode.FULL: [desc]}
        try:
            with set_current_vllm_config(self._runner.vllm_config):
                self._runner.capture_model()
        except BaseException:
            manager.graphs.pop(desc, None)
            raise
        finally:
            manager._capture_descs = all_of_them
        self.seconds += time.perf_counter() - started
        self.count += 1
