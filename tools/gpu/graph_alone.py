"""Times the graph of a decode step alone on the device, without whatever the engine's host does for each step."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Protocol

ROUNDS = 20


class Graph(Protocol):
    """torch.cuda.CUDAGraph."""

    def replay(self) -> None: ...


class Size(Protocol):
    """See vllm.v1.worker.gpu.cudagraph_utils.BatchExecutionDescriptor."""

    num_tokens: int


def milliseconds(graphs: Mapping[Size, Graph], rows: int) -> float:
    """The median of ROUNDS replays on what the last batch of as many rows left in the graph's inputs."""
    return of_replays(next(graph for size, graph in graphs.items() if size.num_tokens == rows))


def of_replays(graph: Graph) -> float:
    """The median of ROUNDS replays in milliseconds, on the current stream."""
    import torch

    times: list[float] = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return median(times)
