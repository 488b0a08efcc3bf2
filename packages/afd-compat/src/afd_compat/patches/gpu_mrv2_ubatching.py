"""Gives vLLM's own dual-batch overlap the decision that it misses where data parallelism has one rank."""

from __future__ import annotations

import copy
import functools
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from afd_compat.declaration import Native, Process, patch
from afd_compat.patches.versions import TESTED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor
    from vllm.config import ParallelConfig, VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor, CudaGraphManager
    from vllm.v1.worker.gpu.ubatch_utils import UBatchRunner
    from vllm.v1.worker.ubatch_utils import UBatchSlice

_WORKER: Final[tuple[Process, ...]] = ("worker",)
_UNTIL: Final = "vLLM microbatches without data parallelism"

#: How long the threads of a step wait for one another to be there, after which the step fails: one that could not
#: even start would otherwise be waited for without an end.
MEET_S: Final = 60.0


def alone(vllm_config: VllmConfig, *_: object, **__: object) -> bool:
    """microbatching is on and there is one data-parallel rank."""
    parallel = vllm_config.parallel_config
    return bool(parallel.use_ubatching and parallel.data_parallel_size == 1)


@patch(
    "vllm.v1.worker.gpu.ubatch_utils:maybe_build_ubatch_runner",
    vllm=TESTED,
    how="wrap",
    when="scoped",
    processes=_WORKER,
    active=alone,
    effect="Builds vLLM's microbatch runner at one data-parallel rank; its forward contexts hold no metadata of other "
    "ranks, and name the slices of the step instead, and nothing of the device is kept free for an all2all.",
    until=_UNTIL,
    pin="sig:8fe9af2bebebc8c7",
)
def build_at_one_rank(native: Native, vllm_config: VllmConfig, *args: object, **kwargs: object) -> object:
    seen = copy.copy(vllm_config)
    seen.parallel_config = copy.copy(vllm_config.parallel_config)
    seen.parallel_config.data_parallel_size = 2
    runner = cast("UBatchRunner", native(seen, *args, **kwargs))
    runner.vllm_config, runner.parallel_config = vllm_config, vllm_config.parallel_config
    runner._make_forward_contexts = functools.partial(_contexts, vllm_config)
    runner.sm_control = nullcontext()
    runner.ready_barrier = threading.Barrier(runner.num_ubatches + 1, timeout=MEET_S)
    return runner


def _contexts(
    vllm_config: VllmConfig,
    slices: list[UBatchSlice],
    attention: Sequence[object],
    slot_mappings: Sequence[dict[str, Tensor]],
    paddings: Sequence[Tensor | None],
) -> list[ForwardContext]:
    """One forward context per microbatch; without data parallelism there is no metadata of other ranks."""
    from vllm.forward_context import create_forward_context

    each = zip(attention, slot_mappings, paddings, strict=True)
    return [
        create_forward_context(metadata, vllm_config, ubatch_slices=slices, slot_mapping=slots, is_padding=padding)
        for metadata, slots, padding in each
    ]


@dataclass(frozen=True, slots=True)
class _Batch:
    """What a call of the patched function says about its batch. possible: whether it may be split at all."""

    graphs: CudaGraphManager | None
    num_reqs: int
    num_tokens: int
    uniform_token_count: int | None
    num_active_loras: int
    parallel: ParallelConfig | None
    uniform_decode: bool
    possible: bool


def _batch(
    cudagraph_manager: CudaGraphManager | None,
    num_reqs: int,
    num_tokens: int,
    uniform_token_count: int | None,
    dp_size: int,
    dp_rank: int,
    max_query_len: int | None = None,
    need_eager: bool = False,
    num_active_loras: int = 0,
    parallel_config: ParallelConfig | None = None,
    allow_ubatching: bool = False,
    uniform_decode: bool = False,
    *_: object,
    **__: object,
) -> _Batch:
    """Takes what the patched function takes, whose last parameters differ between releases and say nothing here."""
    del dp_rank, max_query_len
    possible = allow_ubatching and dp_size == 1 and not need_eager and cudagraph_manager is not None
    return _Batch(
        cudagraph_manager, num_reqs, num_tokens, uniform_token_count, num_active_loras, parallel_config,
        uniform_decode, possible,
    )  # fmt: skip


def splits(*args: object, **kwargs: object) -> bool:
    """one data-parallel rank, and the batch passes vLLM's thresholds of microbatching."""
    batch = cast("Callable[..., _Batch]", _batch)(*args, **kwargs)
    if not batch.possible or batch.parallel is None:
        return False
    from vllm.v1.worker.ubatch_utils import check_ubatch_thresholds

    return bool(check_ubatch_thresholds(batch.parallel, batch.num_tokens, batch.uniform_decode))


@patch(
    "vllm.v1.worker.gpu.dp_utils:dispatch_cg_and_sync_dp",
    vllm=TESTED,
    how="wrap",
    when="scoped",
    processes=_WORKER,
    active=splits,
    effect="Applies vLLM's thresholds of microbatching at one data-parallel rank and answers with the descriptor of "
    "the split batch; nothing is agreed with anyone.",
    until=_UNTIL,
    pin={
        "0.30": "sig:755349adc09e6a02",
        "0.31": "sig:755349adc09e6a02",
        "0.32": "sig:9a7bbd53bc15297c",
        "0.33": "sig:3a8149de8962181b",
    },
)
def split_at_one_rank(native: Native, *args: object, **kwargs: object) -> object:
    from vllm.config import CUDAGraphMode
    from vllm.v1.worker.ubatch_utils import get_num_ubatches, is_last_ubatch_empty

    whole = native(*args, **kwargs)
    descriptor, _ = cast("tuple[BatchExecutionDescriptor, None]", whole)
    batch = cast("Callable[..., _Batch]", _batch)(*args, **kwargs)
    assert batch.graphs is not None  # or `splits` had said no
    assert batch.parallel is not None
    count = get_num_ubatches(batch.parallel)
    split = batch.graphs.dispatch(
        batch.num_reqs, batch.num_tokens, batch.uniform_token_count,
        num_active_loras=batch.num_active_loras, num_ubatches=count,
    )  # fmt: skip
    if split.cg_mode is CUDAGraphMode.NONE and descriptor.cg_mode is not CUDAGraphMode.NONE:
        return whole  # a graph of the whole batch is faster than two halves without one
    if is_last_ubatch_empty(batch.num_tokens, split.num_tokens, count):
        return whole  # padding alone is not worth a microbatch
    return split, None
