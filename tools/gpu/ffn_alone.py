"""Times the FFN role's layers from one graph, without any transfer, while nobody sends it anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tools.gpu.graph_alone import of_replays

if TYPE_CHECKING:
    from torch import Tensor, device


class Stage(Protocol):
    """See afd_models.stages."""

    layer: int


class FFN(Protocol):
    """What is used of an FFN worker."""

    device: device
    _stages: tuple[Stage, ...]

    def _replay(self, layer: int, hidden: Tensor) -> Tensor: ...


def milliseconds(worker: FFN, rows: int) -> float:
    """The median of ROUNDS replays. The forward context is the serving thread's, which is this process's only one."""
    import torch

    generator = torch.Generator(worker.device).manual_seed(rows)
    hidden = worker.vllm_config.model_config.get_hidden_size()  # type: ignore[attr-defined]
    shape = (rows, hidden)
    given = torch.randn(shape, device=worker.device, dtype=torch.bfloat16, generator=generator)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.stream(stream):
        for _ in range(2):
            for stage in worker._stages:
                worker._replay(stage.layer, given)
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for stage in worker._stages:
                worker._replay(stage.layer, given)
        return of_replays(graph)
