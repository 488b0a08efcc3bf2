"""Hops without the other process: between two streams of one, and what a wait takes from work beside it."""

from __future__ import annotations

import os
from itertools import pairwise
from statistics import median

import torch

from afd_connectors.transports.nvlink.moves import Moves
from afd_connectors.transports.nvlink.sizes import Plan
from afd_connectors.transports.nvlink.window import Window
from afd_workers.cuda_ffn import Recorder
from tools.gpu.hop_jobs import timed
from tools.gpu.hop_side import Side


class AloneSide(Side):
    """A side that does without its peer."""

    def alone(
        self, rows: int, hidden: int, trips: int, rounds: int, plan: list[object], early: bool
    ) -> dict[str, object]:
        """Microseconds one way where both sides are streams of this process: a hop without its link."""
        size = 2 * rows * hidden
        windows = [Window(self.driver, self.shape) for _ in range(2)]
        descriptors = [window.make() for window in windows]
        for window, descriptor in zip(windows, reversed(descriptors), strict=True):
            window.attach(descriptor)
        for descriptor in descriptors:
            os.close(descriptor)
        found = Plan(*plan)  # type: ignore[arg-type]
        moves = Moves(self.driver, self.limit_s, lambda _size: found, early=early)
        arrives = windows[1].landing(0)
        there = windows[0].outgoing(self.rows.data_ptr(), 1, 0, 0)._replace(size=size)
        taken = windows[1].incoming(arrives, 1, 0, 0)._replace(size=size)
        back = windows[1].outgoing(arrives, 1, 0, 0)._replace(size=size)
        got = windows[0].incoming(self.out.data_ptr(), 1, 0, 0)._replace(size=size)
        own, other = torch.cuda.current_stream(), torch.cuda.Stream()

        def ours() -> None:
            for _ in range(trips):
                moves.put((there,), torch.cuda.current_stream().cuda_stream)
                moves.wait((got,), torch.cuda.current_stream().cuda_stream)

        def theirs() -> None:
            for _ in range(trips):
                moves.wait((taken,), torch.cuda.current_stream().cuda_stream)
                moves.put((back,), torch.cuda.current_stream().cuda_stream)

        first = Recorder()(ours)
        with torch.cuda.stream(other):
            second = Recorder()(theirs)
        self.out.zero_()
        torch.cuda.synchronize()

        def both() -> None:
            with torch.cuda.stream(other):
                second()
            first()

        answer = timed(both, trips, rounds)
        torch.cuda.synchronize()
        told = {"right": self.right(rows * hidden), "error": list(windows[0].error())}
        own.synchronize()
        for window in windows:
            window.free()
        return answer | told

    def beside(self, blocks: int, apart: bool) -> dict[str, object]:
        """Milliseconds of a matrix product alone and beside a wait of that many blocks; apart: see Plan."""
        left = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        self.window.restart()
        waits = Moves(self.driver, 0.2, lambda _size: Plan(16384, blocks, blocks, blocks, apart), early=False)
        part = self.window.incoming(self.out.data_ptr(), 1, 0, 0)._replace(size=16384 * blocks)
        side = torch.cuda.Stream()
        found = []
        for beside in (False, True):
            torch.cuda.synchronize()
            if beside:
                waits.wait((part,), side.cuda_stream)
            events = [torch.cuda.Event(enable_timing=True) for _ in range(21)]
            for event in events:
                event.record()
                left @ left
            torch.cuda.synchronize()
            found.append(median(a.elapsed_time(b) for a, b in pairwise(events[5:])))
        return {"ms": found}
