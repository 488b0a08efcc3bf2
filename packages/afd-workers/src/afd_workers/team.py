"""A tensor-parallel FFN rank: its first process owns the port, the others compute what that one tells them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch import distributed

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup
    from vllm.config import ModelConfig

Compute = Callable[[int, "Tensor"], "Tensor"]

#: What may stand in place of a layer number.
_IDLE, _END = -1, -2
_HEAD = 2  # layer, rows


def form(model_config: ModelConfig, compute: Compute, timeout_s: float) -> Alone | Lead | Follower:
    """This process's place in its FFN rank; called by all of its processes at once, as it makes their group.

    compute: (layer, [rows, hidden]) -> the stage's output. timeout_s: the longest that one waits for another.
    """
    from vllm.distributed.parallel_state import get_tp_group

    tensor = get_tp_group()
    if tensor.world_size == 1:
        return Alone(compute)
    group = distributed.new_group(tensor.ranks, timeout=timedelta(seconds=timeout_s), backend="gloo")
    if tensor.is_first_rank:
        return Lead(group, tensor.first_rank, compute)
    return Follower(group, tensor.first_rank, compute, model_config.get_hidden_size(), model_config.dtype)


class Alone:
    """The only process of its FFN rank, which has nobody to tell; see Lead."""

    def __init__(self, compute: Compute) -> None:
        self._compute = compute

    def __call__(self, layer: int, hidden: Tensor) -> Tensor:
        """See Lead."""
        return self._compute(layer, hidden)

    def idle(self) -> None:
        """See Lead."""

    @contextmanager
    def leading(self) -> Iterator[None]:
        """See Lead."""
        yield


class Lead:
    """On the process with the port: hands each exchange to the others before it computes its own part.

    group: CPU group of all processes of this FFN rank, for this alone. lead: its first process's global rank.
    Errors of the group are raised: without the others nothing can be computed.
    """

    def __init__(self, group: ProcessGroup, lead: int, compute: Compute) -> None:
        self._group, self._lead, self._compute = group, lead, compute

    def __call__(self, layer: int, hidden: Tensor) -> Tensor:
        """hidden: [rows, hidden]; the stage's output, alike, which the model's own all-reduce makes whole."""
        self._tell(layer, hidden.shape[0])
        distributed.broadcast(hidden, self._lead, group=self._group)
        return self._compute(layer, hidden)

    def idle(self) -> None:
        """Shows the others that this process lives, so that none of their waits is long."""
        self._tell(_IDLE, 0)

    @contextmanager
    def leading(self) -> Iterator[None]:
        """At a regular end the others end too; after an error they see the connection end and fail."""
        yield
        self._tell(_END, 0)

    def _tell(self, layer: int, rows: int) -> None:
        distributed.broadcast(torch.tensor((layer, rows)), self._lead, group=self._group)


class Follower:
    """On the other processes; see Lead. hidden: elements of a row of torch type ``dtype``.

    A lead that ended is an error at once, one that says nothing within the group's timeout too.
    """

    def __init__(self, group: ProcessGroup, lead: int, compute: Compute, hidden: int, dtype: torch.dtype) -> None:
        self._group, self._lead, self._compute = group, lead, compute
        self._hidden, self._dtype = hidden, dtype
        self._head = torch.zeros(_HEAD, dtype=torch.int64)

    def serve_one(self) -> bool:
        """See loop.Source."""
        distributed.broadcast(self._head, self._lead, group=self._group)
        layer, rows = self._head.tolist()
        if layer == _END:
            return False
        if layer != _IDLE:
            hidden = torch.empty((rows, self._hidden), dtype=self._dtype)
            distributed.broadcast(hidden, self._lead, group=self._group)
            self._compute(layer, hidden)
        return True

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Nobody follows this process."""
        yield

    def close(self) -> None:
        """See loop.Source. Nothing to do: the lead's next word, due within a second, ends a wait."""
