"""Sees within a limit that another process of a tensor-parallel FFN rank ended or stands still.

Nobody else would: the model's own all-reduce waits for a process that stands still as long as its library likes, and
the first process goes on to show attention that it lives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch import distributed

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

BEAT_S = 0.5
#: While all are being stopped one may be gone a moment before another is closed. After a crash there is no more time:
#: vLLM ends the others then, and nothing would have said why.
LEAVING_S = 0.5
#: For one whose own wait for the others has failed, until the watch has seen why.
TOLD_S = 3.0


class Watch:
    """A thread on each process; the first process exchanges beats with each of the others.

    group: CPU group of all of them, for this alone, in whose order they are numbered. limit_s: the longest silence.
    on_loss: called at most once, on that thread, with what is wrong with which process; never after ``close``.
    """

    def __init__(self, group: ProcessGroup, limit_s: float, on_loss: Callable[[str], None]) -> None:
        self._group, self._limit_s, self._on_loss = group, limit_s, on_loss
        self._ranks = distributed.get_process_group_ranks(group)
        self._closed, self._lost = threading.Event(), threading.Event()
        threading.Thread(target=self._run, name="afd-team-watch", daemon=True).start()

    def close(self) -> None:
        """No loss is told any more; may be called twice."""
        self._closed.set()

    def lost(self, wait_s: float = TOLD_S) -> bool:
        """Whether a loss is told within ``wait_s``."""
        return self._lost.wait(wait_s)

    def _run(self) -> None:
        beat = self._lead if distributed.get_rank(self._group) == 0 else self._follow
        problem: str | None = None
        while problem is None and not self._closed.is_set():
            problem = beat()
        if problem is not None and not self._closed.wait(LEAVING_S):
            self._lost.set()
            self._on_loss(problem)

    def _lead(self) -> str | None:
        self._closed.wait(BEAT_S)
        end = time.monotonic() + self._limit_s
        for number in range(1, len(self._ranks)):
            problem = self._exchange(number, end - time.monotonic())
            if problem is not None:
                return problem
        return None

    def _follow(self) -> str | None:
        # The first process may be held up by another that stands still, and is the one to say so.
        return self._exchange(0, BEAT_S + 2 * self._limit_s)

    def _exchange(self, number: int, wait_s: float) -> str | None:
        """A beat to and one from a process; what is wrong with it, if anything is."""
        rank, begun, limit = self._ranks[number], time.monotonic(), timedelta(seconds=max(wait_s, BEAT_S))
        sent, received = torch.ones(1), torch.empty(1)
        try:
            works = (
                distributed.irecv(received, rank, group=self._group),
                distributed.isend(sent, rank, group=self._group),
            )
            for work in works:
                if work is not None:  # torch's annotation of ranks outside the group
                    work.wait(limit)
        except RuntimeError:
            waited = time.monotonic() - begun
            how = "ended" if waited < limit.total_seconds() else f"has stood still for {waited:.0f} s"
            return f"expected its {len(self._ranks)} processes, found that process {number} {how}"
        return None
