"""One rank of a tensor-parallel group without the others, for models that are built and loaded but never run."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def rank_of(size: int, rank: int = 0) -> Iterator[None]:
    """While active, vLLM's layers find themselves on ``rank`` of a group of ``size``; its groups of one are needed."""
    from vllm.distributed import parallel_state

    native = {name: getattr(parallel_state, name) for name in ("_TP", "_EP")}
    for name, group in native.items():
        if group is not None:  # a model without experts has no group for them
            pretended = copy.copy(group)
            pretended.world_size, pretended.rank_in_group, pretended.ranks = size, rank, list(range(size))
            setattr(parallel_state, name, pretended)
    try:
        yield
    finally:
        for name, group in native.items():
            setattr(parallel_state, name, group)
