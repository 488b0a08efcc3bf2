"""Times the FFN role's layers from one graph, without any transfer, while nobody sends it anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


class Source(Protocol):
    """What is used of an FFN worker's StepSource."""

    _compute: Callable[[int, Tensor, Tensor | None], Tensor]


def watch(source: Source, rows: int, prompt: int) -> dict[int, Tensor]:
    """By layer, the rows of the last tokens of the next batch of `rows` prompts of `prompt` tokens, once it came."""
    native, kept = source._compute, dict[int, "Tensor"]()

    def compute(layer: int, hidden: Tensor, router: Tensor | None) -> Tensor:
        if hidden.shape[0] == rows * prompt:
            kept[layer] = hidden[prompt - 1 :: prompt].clone()
        return native(layer, hidden, router)

    source._compute = compute
    return kept


def milliseconds(worker: FFN, rows: int, kept: Mapping[int, Tensor]) -> float:
    """The median of ROUNDS replays, on rows that were kept of each layer, or on random ones.

    Which experts are read depends on the rows. The forward context is the serving thread's, which is this process's
    only one.
    """
    import torch

    generator = torch.Generator(worker.device).manual_seed(rows)
    hidden = worker.vllm_config.model_config.get_hidden_size()  # type: ignore[attr-defined]
    shape = (rows, hidden)
    given = torch.randn(shape, device=worker.device, dtype=torch.bfloat16, generator=generator)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()

    def layers() -> None:
        for stage in worker._stages:
            worker._replay(stage.layer, kept.get(stage.layer, given))

    with torch.inference_mode(), torch.cuda.stream(stream):
        for _ in range(2):
            layers()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            layers()
        return of_replays(graph)
