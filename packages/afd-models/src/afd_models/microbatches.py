"""How a step that comes as several microbatches uses an exchange: each is a stage, and they take turns."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Microbatches(Protocol):
    """What an exchange asks of whoever splits steps; every method on the thread of the microbatch it concerns."""

    def stage(self) -> int:
        """The stage of the calling thread's microbatch; 0 where the step is one batch."""

    def tokens(self, rows: int) -> tuple[int, ...]:
        """Rows per stage of the step whose stage 0 has `rows`."""

    def sending(self, stage: int) -> AbstractContextManager[None]:
        """Around the send of a stage's rows."""

    def receiving(self, stage: int) -> AbstractContextManager[None]:
        """Around the receipt of their answer."""

    def give_way(self, out: Tensor) -> None:
        """Between the two, `out` being what the answer will fill: lets the other microbatch run meanwhile.

        RuntimeError when it ended early, as this one would wait for it for ever.
        """


_ALONE: AbstractContextManager[None] = nullcontext()


class OneBatch:
    """Steps that are never split."""

    def stage(self) -> int:
        """See Microbatches."""
        return 0

    def tokens(self, rows: int) -> tuple[int, ...]:
        """See Microbatches."""
        return (rows,)

    def sending(self, stage: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """See Microbatches."""
        return _ALONE

    def receiving(self, stage: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """See Microbatches."""
        return _ALONE

    def give_way(self, out: Tensor) -> None:
        """See Microbatches."""
