"""The attention role's graphs, dropped when connections are lost that they do not outlast, captured when needed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from vllm.config import set_current_vllm_config
from vllm.config.compilation import CUDAGraphMode

from afd_connectors.deadline import Deadline
from afd_connectors.errors import PeerLost
from afd_workers.cuda_redo import drained

if TYPE_CHECKING:
    from torch import Tensor
    from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor, ModelCudaGraphManager
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    from afd_connectors.stepped import DeviceAttentionPort


class Graphs:
    """A runner's graphs of whole steps over a port's connections.

    new_pool: memory for graphs. limit_s: how long the device may take to let go of a lost rank; recovery_s: how long
    a graph is tried for while ranks come and go. together: whether other processes capture the same graphs, so that
    this one cannot do it again alone. seconds, count: what captures since the start took, and how many.
    """

    def __init__(
        self, runner: GPUModelRunner, port: DeviceAttentionPort, new_pool: Callable[[], object],
        limit_s: float, recovery_s: float, *, together: bool = False,
    ) -> None:  # fmt: skip
        self._runner, self._port, self._new_pool = runner, port, new_pool
        self._limit_s, self._recovery_s = limit_s, recovery_s
        self._together = together
        self.seconds, self.count = 0.0, 0

    @property
    def manager(self) -> ModelCudaGraphManager:
        """vLLM's own."""
        return self._runner.cudagraph_manager

    def drain(self) -> None:
        """Waits until the device has let go of lost ranks."""
        drained(self._runner, self._port, self._limit_s)

    def mend(self) -> None:
        """Reaches lost FFN ranks again, without the graphs that were captured with them unless these last; the device
        is idle. PeerLost where those graphs cannot be had again.
        """
        if not self._port.lost():
            return
        if self.manager is not None and self.manager.graphs and not self._port.lasting:
            if self._together:
                raise PeerLost(
                    "an FFN rank was lost, and one process of a tensor-parallel attention replica cannot capture its "
                    "graphs again alone: restart this server."
                )
            self.manager.graphs.clear()
            self.manager.pool = self._new_pool()  # one whose last graph is gone cannot be used again
        self._port.rejoin()

    def ensure(self, desc: BatchExecutionDescriptor) -> bool:
        """Captures one that is not there; whether it did, which overwrites the inputs of the step at hand."""
        recovery = Deadline(self._recovery_s)
        fresh = False
        while desc not in self.manager.graphs:
            fresh = True
            try:
                self._capture(desc)
            except (PeerLost, RuntimeError):
                if not self._port.lost() or recovery.passed:
                    raise
                self.drain()
                self.mend()
        return fresh

    def output(self, desc: BatchExecutionDescriptor) -> Tensor:
        """Where the graph of `desc` puts what the model computes."""
        everything = self.manager.hidden_states
        assert everything is not None
        hidden: Tensor = everything[: desc.num_tokens]
        return hidden

    def _capture(self, desc: BatchExecutionDescriptor) -> None:
        """With vLLM's own code."""
        started = time.perf_counter()
        manager = self.manager
        all_of_them = manager._capture_descs
        manager._capture_descs = {CUDAGraphMode.FULL: [desc]}
        try:
            with self._port.awaiting(), set_current_vllm_config(self._runner.vllm_config):
                self._runner.capture_model()
        except BaseException:
            manager.graphs.pop(desc, None)
            raise
        finally:
            manager._capture_descs = all_of_them
        self.seconds += time.perf_counter() - started
        self.count += 1
