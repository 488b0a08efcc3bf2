"""A tensor-parallel FFN rank: its first process owns the port, the others compute what that one tells them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch import distributed

from afd_connectors.checks import DTYPE_NAMES, router_code
from afd_workers.team_watch import Watch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup
    from vllm.config import ModelConfig

    from afd_compat.config import Config

log = logging.getLogger("afd.workers")

Compute = Callable[[int, "Tensor", "Tensor | None"], "Tensor"]
Kinds = tuple["type[Lead]", "type[Follower]"]

#: What may stand in place of a layer number; subclasses have words of their own below.
_IDLE, _END = -1, -2
_HEAD = 4  # layer, rows, width of the router logits, their dtype's code


class TeamLost(Exception):
    """Another process of this FFN rank ended or stands still; its text is one sentence."""


def form(
    model_config: ModelConfig, compute: Compute, config: Config, on_loss: Callable[[BaseException], None],
    kinds: Kinds | None = None,
) -> Alone | Lead | Follower:  # fmt: skip
    """This process's place in its FFN rank; called by all of its processes at once, as it makes their groups.

    compute: (layer, [rows, hidden], [rows, experts] or None) -> the stage's output. on_loss: called on a thread of its
    own, once the loss of another process is logged; that takes timeout_s where one stands still, and twice as long
    where it is the first. kinds: what the first process and the others are, where that is not Lead and Follower.
    """
    from vllm.distributed.parallel_state import get_tp_group

    tensor = get_tp_group()
    if tensor.world_size == 1:
        return Alone(compute)

    def tell(problem: str) -> None:
        lost = TeamLost(f"AFD FFN rank {config.rank} ends: {problem}; start its server again.")
        log.error("%s", lost)
        on_loss(lost)

    limit = timedelta(seconds=config.recovery_timeout_s)
    words, beats = (distributed.new_group(tensor.ranks, timeout=limit, backend="gloo") for _ in range(2))
    watch = Watch(beats, config.timeout_s, tell)
    lead, follower = kinds or (Lead, Follower)
    if tensor.is_first_rank:
        return lead(words, tensor.first_rank, compute, watch)
    return follower(words, tensor.first_rank, compute, watch, model_config.get_hidden_size(), model_config.dtype)


class Alone:
    """The only process of its FFN rank, which has nobody to tell; see Lead."""

    def __init__(self, compute: Compute) -> None:
        self._compute = compute

    def __call__(self, layer: int, hidden: Tensor, router: Tensor | None = None) -> Tensor:
        """See Lead."""
        return self._compute(layer, hidden, router)

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

    def __init__(self, group: ProcessGroup, lead: int, compute: Compute, watch: Watch) -> None:
        self._group, self._lead, self._compute, self._watch = group, lead, compute, watch

    def __call__(self, layer: int, hidden: Tensor, router: Tensor | None = None) -> Tensor:
        """hidden: [rows, hidden]; the stage's output, alike, which the model's own all-reduce makes whole.

        router: [rows, experts] where attention has the gate.
        """
        self._tell(layer, hidden.shape[0], 0 if router is None else router.shape[1], router_code(router))
        self._hand_out(hidden)
        if router is not None:
            self._hand_out(router)
        return self._compute(layer, hidden, router)

    def idle(self) -> None:
        """Shows the others that this process lives, so that none of their waits is long."""
        self._tell(_IDLE, 0)

    @contextmanager
    def leading(self) -> Iterator[None]:
        """At a regular end the others end too; after an error they lose this process."""
        with _unless_lost(self._watch):
            yield
            self._tell(_END, 0)

    def _hand_out(self, tensor: Tensor) -> None:
        distributed.broadcast(tensor, self._lead, group=self._group)

    def _tell(self, layer: int, rows: int, width: int = 0, code: int = 0) -> None:
        distributed.broadcast(torch.tensor((layer, rows, width, code)), self._lead, group=self._group)


class Follower:
    """On the other processes; see Lead. hidden: elements of a row of torch type ``dtype``.

    A lead that ended is an error at once.
    """

    def __init__(
        self, group: ProcessGroup, lead: int, compute: Compute, watch: Watch, hidden: int, dtype: torch.dtype
    ) -> None:
        self._group, self._lead, self._compute, self._watch = group, lead, compute, watch
        self._hidden, self._dtype = hidden, dtype
        self._head = torch.zeros(_HEAD, dtype=torch.int64)

    def serve_one(self) -> bool:
        """See loop.Source."""
        word, number = self._next()
        if word < _END:
            self._obey(word, number)
        return word != _END

    def _next(self) -> tuple[int, int]:
        """What the lead says next: an exchange, which is computed, or a word below zero with a number."""
        distributed.broadcast(self._head, self._lead, group=self._group)
        layer, rows, width, code = self._head.tolist()
        if layer >= 0:
            hidden = self._receive(rows, self._hidden, self._dtype)
            router = self._receive(rows, width, getattr(torch, DTYPE_NAMES[code])) if code else None
            self._compute(layer, hidden, router)
        return layer, rows

    def _obey(self, word: int, number: int) -> None:  # noqa: ARG002
        """Does what a word of a subclass's lead asks for."""
        raise RuntimeError(f"Expected a word of this version from the first process, found {word}.")

    def _receive(self, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        room = torch.empty((rows, width), dtype=dtype)
        distributed.broadcast(room, self._lead, group=self._group)
        return room

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Nobody follows this process; see Lead."""
        with _unless_lost(self._watch):
            yield

    def close(self) -> None:
        """See loop.Source. Nothing to do: the lead's next word, due within a second, ends a wait."""


@contextmanager
def _unless_lost(watch: Watch) -> Iterator[None]:
    """Around all that a process serves; no error leaves it when the watch has told the reason of it."""
    try:
        yield
    except RuntimeError:  # of the group, or of the model's own collectives
        if not watch.lost():
            raise
    finally:
        watch.close()
