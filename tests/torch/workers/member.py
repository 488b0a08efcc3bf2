"""One process of a tensor-parallel FFN rank whose model adds its processes' parts up."""

from __future__ import annotations

import multiprocessing
import os
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import distributed

from afd_workers.ending import EXIT_CODE
from afd_workers.team import Follower, Lead
from afd_workers.team_watch import Watch

SIZE = 2
GROUP_S, LIMIT_S = 60.0, 2.0
BEAT_S = 0.1
WAIT_S = 60.0
#: Layers 0 to 2 with 1, 3 and 2 rows of two ones, times 1 on the first process and 2 on the second; layer 1 comes with
#: four logits of one a row, whose sum is added to each element before.
COMPUTED = [(0, 6), (1, 90), (2, 12)]

# Forks of a process that has imported torch and done nothing else: as fresh as a new interpreter, and faster.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])


class Member:
    """Its process. role: what the first one does after three exchanges: it ends ("end"), idles or goes on ("busy")."""

    def __init__(self, rank: int, store: Path, role: str) -> None:
        self._words, theirs = _CONTEXT.Pipe(duplex=False)
        self.process = _CONTEXT.Process(target=_run, args=(rank, store, role, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def hear(self) -> object:
        """The next that it says: (layer, sum of its elements) of an exchange, or what the watch says."""
        assert self._words.poll(WAIT_S), f"it said nothing within {WAIT_S:g} s"
        return self._words.recv()

    def hear_last(self) -> object:
        """The last that it says before it ends, within WAIT_S."""
        self.process.join(WAIT_S)
        assert self.process.exitcode is not None
        said: object = None
        while self._words.poll():
            try:
                said = self._words.recv()
            except EOFError:
                break
        return said

    def signal(self, number: int) -> None:
        """Sends it a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def end(self) -> None:
        """Kills it if it runs."""
        self.process.kill()
        self.process.join(WAIT_S)
        self._words.close()


def _run(rank: int, store: Path, role: str, words: Connection) -> None:
    torch.set_num_threads(1)
    limit, ranks = timedelta(seconds=GROUP_S), list(range(SIZE))
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=SIZE, timeout=limit)
    group, beats = (distributed.new_group(ranks, timeout=limit, backend="gloo") for _ in range(2))

    def end(problem: str) -> None:
        """As a worker does, without its patience."""
        words.send(problem)
        os._exit(EXIT_CODE)

    def compute(layer: int, hidden: torch.Tensor, router: torch.Tensor | None) -> torch.Tensor:
        part = (hidden if router is None else hidden + router.sum(-1, keepdim=True)) * (rank + 1)
        distributed.all_reduce(part)
        if layer < len(COMPUTED):
            words.send((layer, int(part.sum())))
        return part

    watch = Watch(beats, LIMIT_S, end)
    if rank:
        follower = Follower(group, 0, compute, watch, 2, torch.float32)
        with follower.leading():
            while follower.serve_one():
                continue
    else:
        lead = Lead(group, 0, compute, watch)
        with lead.leading():
            _lead(lead, role)
    if watch.lost(0):
        time.sleep(WAIT_S)  # the watch's thread is about to end this process, which lives no longer than this one


def _lead(lead: Lead, role: str) -> None:
    for layer, rows in enumerate((1, 3, 2)):
        lead(layer, torch.ones((rows, 2)), torch.ones((rows, 4), dtype=torch.bfloat16) if layer == 1 else None)
        lead.idle()
    while role != "end":
        time.sleep(BEAT_S)
        if role == "idle":
            lead.idle()
        else:
            lead(len(COMPUTED), torch.zeros((1, 2)))
