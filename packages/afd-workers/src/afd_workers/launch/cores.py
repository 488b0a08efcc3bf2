"""Shares this host's processors out among CPU ranks, since vLLM would bind every server to the same ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise


def blocks(ranks: int) -> tuple[tuple[int, ...], ...]:
    """One block of processor numbers per rank, contiguous and as equal as can be; shared when there are too few."""
    available = sorted(os.sched_getaffinity(0))
    if len(available) < ranks:
        return tuple((available[rank % len(available)],) for rank in range(ranks))
    bounds = [rank * len(available) // ranks for rank in range(ranks + 1)]
    return tuple(tuple(available[low:high]) for low, high in pairwise(bounds))


def environment(shares: Sequence[Sequence[int]]) -> dict[str, str]:
    """Variables that bind one server to ``shares``, a block of processors for each of its local ranks."""
    binding = "|".join(",".join(map(str, share)) for share in shares)
    # The second is for engines without a worker process, which vLLM does not bind itself.
    return {"VLLM_CPU_OMP_THREADS_BIND": binding, "OMP_NUM_THREADS": str(max(len(share) for share in shares))}
