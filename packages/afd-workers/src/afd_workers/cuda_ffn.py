"""The FFN role's compute on a CUDA device: whole steps on a stream of its own, from graphs where there are some."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol

import torch

from afd_connectors.errors import ConnectorError
from afd_connectors.stepped import Gathered, SteppedFFNPort
from afd_workers.cuda_pace import Pace
from afd_workers.dbo_ffn import Overlapped
from afd_workers.graphs import Call, Steps
from afd_workers.loop import IDLE_CHECK_S
from afd_workers.team import Compute

if TYPE_CHECKING:
    from torch import Tensor
    from torch.cuda import _POOL_HANDLE

log = logging.getLogger("afd.workers")
DRAIN_S = 10.0


class Recording(Protocol):
    """Makes graphs and is told when they are gone."""

    def __call__(self, enqueue: Call) -> Call:
        """See Steps.capture."""

    def drop(self, call: Call) -> None:
        """What was recorded will not be called again; the device is past it."""

    def new_pool(self) -> None:
        """See Steps.new_pool."""


class Recorder:
    """Captures graphs on the calling thread's stream; they share one pool, as one runs at a time."""

    def __init__(self) -> None:
        self._pool: _POOL_HANDLE | None = None

    def __call__(self, enqueue: Call) -> Call:
        """See Recording."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # Other threads of this process meet peers meanwhile, which a stricter mode would not allow.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"
        ):
            enqueue()
        return graph.replay

    def drop(self, call: Call) -> None:
        """See Recording."""

    def new_pool(self) -> None:
        """A pool whose last graph is gone cannot be used again."""
        self._pool = None


class StepSource:
    """See loop.Source; serves the steps of a port. local: layers that attention does not exchange.

    recording: makes its graphs. idle: called when no step was begun for IDLE_CHECK_S.
    """

    def __init__(
        self, port: SteppedFFNPort, compute: Compute, local: Container[int] = (),
        recording: Recording | None = None, idle: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._port, self._compute, self._local = port, compute, local
        self._overlapped = Overlapped(port, compute, local)
        made = recording or Recorder()
        self.steps = Steps(self._forward, made, made.new_pool, made.drop, lasting=port.lasting)
        self._pace, self._idle = Pace(), idle
        self.host_s = 0.0
        self.split = 0

    def serve_one(self) -> bool:
        """See Source."""
        if len(self._port.epochs()) > 1 and not self._pace.free(IDLE_CHECK_S):
            self._idle()  # an attention rank may take its time in the middle of a step
            return True
        gathered = self._port.next_step(wait_s=IDLE_CHECK_S)
        epochs = self._port.epochs()
        if self.steps.stale(epochs):
            self._drain()
            self.steps.keep(epochs)
        if gathered is None:
            self._idle()
        else:
            started = time.perf_counter()
            self.split += gathered.stages > 1 and not gathered.capture
            self.steps.run(gathered)
            self._pace.begun()
            self.host_s += time.perf_counter() - started
        return True

    def close(self) -> None:
        """See Source."""
        self._port.close()

    def figures(self) -> dict[str, float]:
        """What `graphs.Figures` holds, the steps that had two stages, and the seconds that this thread spent in all."""
        return {**asdict(self.steps.figures), "split": self.split, "host_s": self.host_s}

    def _forward(self, gathered: Gathered) -> None:
        if gathered.stages > 1:
            self._overlapped(gathered)
            return
        port, compute = self._port, self._compute
        for layer, stage in gathered.exchanges(port.layers, self._local):
            work = port.take(gathered, layer, stage)
            if work is not None:
                port.send(work, compute(layer, work.hidden, work.router))

    def _drain(self) -> None:
        """Waits until the device has let go of graphs that are about to be dropped; their transfers have ended."""
        event = torch.cuda.Event()
        event.record()
        until = time.monotonic() + DRAIN_S
        while not event.query():
            if time.monotonic() > until:
                raise ConnectorError(
                    f"the device did not end the steps of a lost attention rank within {DRAIN_S:g} s; "
                    "restart this server."
                )
            time.sleep(0.001)


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """The calling thread works on `device` and a stream of its own."""
    torch.cuda.set_device(device)
    with torch.cuda.stream(torch.cuda.Stream(device)):
        yield


def warm_up(compute: Compute, layers: Sequence[int], like: Tensor, routers: Mapping[int, Sequence[Tensor]]) -> None:
    """Runs each of ``layers`` with the most rows there can be, then with fewer.

    like: as many rows of hidden states; routers: by layer, as many rows of logits in each dtype that they may have.

    vLLM's workspace grows by being freed, which graphs that were captured with it would not survive: so it has its
    final size before any is captured, and is kept from growing. Other kernels serve fewer rows, and a standby that
    compiled them only when it is needed would be late.
    """
    from vllm.v1.worker.workspace import lock_workspace

    rows = like.shape[0]
    while rows:
        for layer in layers:
            for router in routers.get(layer, (None,)):
                compute(layer, like[:rows], None if router is None else router[:rows])
        rows //= 2
    torch.cuda.current_stream().synchronize()
    lock_workspace()
