"""One process of a tensor-parallel FFN rank: python -m tests.torch.workers.member RANK SIZE STORE ROLE.

A lead hands three exchanges out and then ends ("end"), or stays idle until it fails ("idle").
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta

import torch
from torch import distributed

from afd_workers.team import Follower, Lead

GROUP_S = 20.0
BEAT_S = 0.1


def main(rank: int, size: int, store: str, role: str) -> None:
    """Prints each computed layer with the sum over all processes' parts."""
    limit = timedelta(seconds=GROUP_S)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=limit)
    group = distributed.new_group(list(range(size)), timeout=limit, backend="gloo")

    def compute(layer: int, hidden: torch.Tensor) -> torch.Tensor:
        part = hidden * (rank + 1)
        distributed.all_reduce(part)
        print(layer, int(part.sum()), flush=True)
        return part

    if rank:
        follower = Follower(group, 0, compute, 2, torch.float32)
        while follower.serve_one():
            continue
        print("end", flush=True)
        return
    lead = Lead(group, 0, compute)
    with lead.leading():
        for layer, rows in enumerate((1, 3, 2)):
            lead(layer, torch.ones((rows, 2)))
            lead.idle()
        while role == "idle":
            time.sleep(BEAT_S)
            lead.idle()
    print("end", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
