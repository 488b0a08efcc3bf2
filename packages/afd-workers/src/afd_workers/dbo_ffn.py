"""A step of two stages on the FFN role: while one stage is computed, the other's rows come and go beside it."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from afd_connectors.ports import Work
    from afd_connectors.stepped import Gathered, SteppedFFNPort
    from afd_workers.team import Compute


class Overlapped:
    """Enqueues whole steps so that rows arrive and leave on streams of their own.

    The receipt of the next exchange is enqueued before the current one is answered: an attention rank then gets rid
    of a stage's rows whatever becomes of the other stage, so that neither side can wait for the other in a circle.
    """

    def __init__(self, port: SteppedFFNPort, compute: Compute, local: Container[int] = ()) -> None:
        self._port, self._compute, self._local = port, compute, local
        self._lanes: tuple[torch.cuda.Stream, torch.cuda.Stream] | None = None

    def __call__(self, gathered: Gathered) -> None:
        """On the current stream, after which everything is done."""
        here = torch.cuda.current_stream()
        arriving, leaving = self._lanes or self._make(here)
        begun = here.record_event()
        arriving.wait_event(begun)
        leaving.wait_event(begun)
        computed: dict[int, torch.cuda.Event] = {}
        # Kept until the stage is computed again: by then the answer is away, as its rows came after it.
        outs: dict[int, Tensor] = {}
        pending = list(gathered.exchanges(self._port.layers, self._local))
        ahead = self._receive(gathered, *pending[0], computed, arriving)
        for following in [*pending[1:], None]:
            current, ahead = ahead, None
            if following is not None:
                # The other stage's room is free, unless this step has one stage only.
                ahead = self._receive(gathered, *following, computed, arriving)
            if current is None:
                continue
            work, arrived = current
            here.wait_event(arrived)
            outs[work.stage] = self._compute(work.layer, work.hidden, work.router)
            computed[work.stage] = here.record_event()
            leaving.wait_event(computed[work.stage])
            with torch.cuda.stream(leaving):
                self._port.send(work, outs[work.stage])
        here.wait_event(arriving.record_event())
        here.wait_event(leaving.record_event())

    def _receive(
        self, gathered: Gathered, layer: int, stage: int, computed: dict[int, torch.cuda.Event],
        arriving: torch.cuda.Stream,
    ) -> tuple[Work, torch.cuda.Event] | None:  # fmt: skip
        if stage in computed:
            arriving.wait_event(computed[stage])
        with torch.cuda.stream(arriving):
            work = self._port.take(gathered, layer, stage)
        return None if work is None else (work, arriving.record_event())

    def _make(self, here: torch.cuda.Stream) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
        self._lanes = torch.cuda.Stream(here.device), torch.cuda.Stream(here.device)
        return self._lanes
