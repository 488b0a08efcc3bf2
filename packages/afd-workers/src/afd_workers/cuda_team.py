"""A tensor- or expert-parallel FFN rank on CUDA: rows go by NCCL, and all processes replay their graphs together."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from afd_workers.cuda_ffn import Recorder
from afd_workers.team import Compute, Follower, Lead

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from afd_workers.graphs import Call
    from afd_workers.team_watch import Watch

#: Words of the lead beside those of team; each comes with a graph's number.
_CAPTURE, _CAPTURED, _REPLAY, _DROP = -3, -4, -5, -6


class DeviceLead(Lead):
    """See Lead; rows are handed out on the calling thread's stream."""

    def __call__(self, layer: int, hidden: Tensor, router: Tensor | None = None) -> Tensor:
        """See Lead."""
        return super().__call__(layer, hidden.contiguous(), router)

    def order(self, word: int, number: int) -> None:
        """Says a word of this file to the others."""
        self._tell(word, number)

    def _hand_out(self, tensor: Tensor) -> None:
        _broadcast(tensor)


class Together:
    """See cuda_ffn.Recording: what the lead captures the others capture too, and they replay it when it does."""

    def __init__(self, lead: DeviceLead) -> None:
        self._lead, self._recorder, self._numbers = lead, Recorder(), itertools.count()

    def __call__(self, enqueue: Call) -> Call:
        """See Recording."""
        number = next(self._numbers)
        self._lead.order(_CAPTURE, number)
        graph = self._recorder(enqueue)
        self._lead.order(_CAPTURED, number)
        return _Shared(self._lead, number, graph)

    def drop(self, call: Call) -> None:
        """See Recording."""
        assert isinstance(call, _Shared)
        self._lead.order(_DROP, call.number)

    def new_pool(self) -> None:
        """See Recording; the others see by themselves when no graph is left."""
        self._recorder.new_pool()


class _Shared:
    """A graph of all processes, as the lead replays it."""

    def __init__(self, lead: DeviceLead, number: int, graph: Call) -> None:
        self.number = number
        self._lead, self._graph = lead, graph

    def __call__(self) -> None:
        self._lead.order(_REPLAY, self.number)
        self._graph()


class DeviceFollower(Follower):
    """See Follower; on a stream that is the calling thread's."""

    def __init__(
        self, group: ProcessGroup, lead: int, compute: Compute, watch: Watch, hidden: int, dtype: torch.dtype
    ) -> None:
        super().__init__(group, lead, compute, watch, hidden, dtype)
        self._recorder = Recorder()
        self._graphs: dict[int, Call] = {}

    def _obey(self, word: int, number: int) -> None:
        if word == _CAPTURE:
            self._graphs[number] = self._recorder(self._until_captured)
        elif word == _REPLAY:
            self._graphs[number]()
        elif word == _DROP:
            torch.cuda.current_stream().synchronize()  # soon: the lead has seen its part of it end
            del self._graphs[number]
            if not self._graphs:
                self._recorder.new_pool()
        else:
            super()._obey(word, number)

    def _until_captured(self) -> None:
        while self._next()[0] != _CAPTURED:
            continue

    def _receive(self, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        room = torch.empty((rows, width), dtype=dtype, device="cuda")
        _broadcast(room)
        return room


def _broadcast(tensor: Tensor) -> None:
    """The first process's rows, by vLLM's own communicator, whose calls graphs can hold."""
    from vllm.distributed.parallel_state import get_tp_group

    communicator = get_tp_group().device_communicator
    assert communicator is not None  # there are devices, and several
    communicator.broadcast(tensor)
