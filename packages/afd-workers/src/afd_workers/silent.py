"""The port of an attention rank whose rows another one exchanges: it meets nobody and says nothing."""

# ruff: noqa: ARG002  # nothing is done with what is given

from __future__ import annotations

from typing import TYPE_CHECKING

from afd_connectors.ports import AttentionPort, PeerStatus

if TYPE_CHECKING:
    from torch import Tensor

    from afd_connectors.step import Step


class Silent(AttentionPort):
    """See AttentionPort. On devices a rank that exchanges nothing may share its device with the FFN rank, which
    NCCL would not join it with.
    """

    def begin(self, step: Step) -> None:
        """Nobody is told."""

    def send(self, step: Step, layer: int, hidden: Tensor, router: Tensor | None = None, *, stage: int = 0) -> None:
        """RuntimeError."""
        raise RuntimeError("Expected no rows to exchange on this rank, found some: its group's first rank has them.")

    def recv(self, step: Step, layer: int, out: Tensor, *, stage: int = 0) -> None:
        """RuntimeError."""
        raise RuntimeError("Expected no answer to be awaited on this rank: its group's first rank has them.")

    def peers(self) -> tuple[PeerStatus, ...]:
        """None."""
        return ()

    def close(self) -> None:
        """Nothing is open."""
