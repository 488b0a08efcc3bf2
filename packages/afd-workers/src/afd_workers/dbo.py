"""Dual-batch overlap on the attention role: vLLM's microbatches as stages, each away while the other computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import torch
from vllm.forward_context import get_forward_context
from vllm.v1.worker import ubatching

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import Tensor
    from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor

_LIBRARY = torch.library.Library("vllm", "FRAGMENT")
#: `out` is named as written so that a compiler leaves the call between what fills `out` and what was sent before.
_LIBRARY.define("manual_dbo_yield(Tensor(a!) out) -> ()")


class Lane(Protocol):
    """Where the rows of a stage leave, so that neither the other stage nor the answer waits behind them."""

    def leaving(self, stage: int) -> AbstractContextManager[None]:
        """What is enqueued inside comes after all that the calling thread enqueued, and holds up nothing after it."""

    def left(self, stage: int) -> None:
        """What the calling thread enqueues from now on comes after what left."""


class SideStream:
    """A lane on a CUDA device, which graphs can capture."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._events: dict[int, torch.cuda.Event] = {}

    @contextmanager
    def leaving(self, stage: int) -> Iterator[None]:
        """See Lane."""
        self._stream.wait_event(torch.cuda.current_stream().record_event())
        with torch.cuda.stream(self._stream):
            yield
        self._events[stage] = self._stream.record_event()

    def left(self, stage: int) -> None:
        """See Lane."""
        torch.cuda.current_stream().wait_event(self._events.pop(stage))


class Ubatches:
    """See Microbatches; a step that vLLM does not split is one stage."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._failure: BaseException | None = None

    def stage(self) -> int:
        """See Microbatches."""
        found: int = ubatching.dbo_current_ubatch_id()
        return found

    def tokens(self, rows: int) -> tuple[int, ...]:
        """See Microbatches."""
        self._failure = None
        slices = get_forward_context().ubatch_slices if ubatching.dbo_enabled() else None
        if slices is None:
            return (rows,)
        found = tuple(int(each.num_tokens) for each in slices)
        if found[0] != rows:
            raise RuntimeError(
                f"Expected {found[0]} rows in the first microbatch of {found}, found {rows}: "
                "the model must not change the number of rows before its first exchange."
            )
        return found

    @contextmanager
    def sending(self, stage: int) -> Iterator[None]:
        """See Microbatches."""
        if not ubatching.dbo_enabled():
            yield
            return
        with self._told(), self._lane.leaving(stage):
            yield

    @contextmanager
    def receiving(self, stage: int) -> Iterator[None]:
        """See Microbatches."""
        if not ubatching.dbo_enabled():
            yield
            return
        with self._told():
            self._lane.left(stage)
            yield

    def give_way(self, out: Tensor) -> None:
        """See Microbatches."""
        if ubatching.dbo_enabled():
            try:
                torch.ops.vllm.manual_dbo_yield(out)
            except EndedEarly as error:
                raise error from self._failure

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Keeps why a microbatch ended, for the other one to tell: vLLM shows one error of the two."""
        try:
            yield
        except BaseException as error:
            self._failure = self._failure or error
            raise


class EndedEarly(RuntimeError):
    """The other microbatch of a step failed, so this one must not wait for its turn."""


def stage_tokens(desc: BatchExecutionDescriptor) -> tuple[int, ...]:
    """Padded rows per stage of a step that vLLM replays: it splits at a whole multiple, the last takes the rest."""
    rows, count = int(desc.num_tokens), int(desc.num_ubatches)
    each = rows // count
    return (*(each,) * (count - 1), rows - each * (count - 1))


def _give_way(out: Tensor) -> None:  # noqa: ARG001
    """The op's body. Both microbatches come here equally often, the second always later.

    So one that is gone failed; its end has woken this one, and nobody would do so again.
    """
    if not ubatching.dbo_enabled():
        return
    mine = ubatching.dbo_current_ubatch_id()
    gone = [other for other, context in enumerate(ubatching._CURRENT_CONTEXTS) if context is None and other != mine]
    if gone:
        raise EndedEarly(f"microbatch {gone[0]} of this step ended early, so microbatch {mine} cannot go on.")
    ubatching.dbo_yield()


def _fake(_out: Tensor) -> None:
    """Tracing needs no body."""


_LIBRARY.impl("manual_dbo_yield", _give_way, "CompositeExplicitAutograd")
_LIBRARY.impl("manual_dbo_yield", _fake, "Meta")
