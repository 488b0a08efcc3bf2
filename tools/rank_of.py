"""One rank of a group without the others, for models that are built and loaded but never run."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def rank_of(size: int, rank: int = 0, *, groups: tuple[str, ...] = ("_TP", "_EP")) -> Iterator[None]:
    """While active, vLLM's layers find themselves on ``rank`` of a group of ``size``; its groups of one are needed.

    groups: vLLM's names of them; ("_DP", "_EP") for data parallelism.
    """
    from vllm.distributed import parallel_state

    native = {name: getattr(parallel_state, name) for name in groups}
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
