"""A connector that answers every exchange with its own rows, so that the attention role can be timed alone."""

# ruff: noqa: ARG002  # an exchange that goes nowhere needs nothing but its rows

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from afd_connectors.ports import AttentionPort, Connector, FFNPort, PeerStatus

if TYPE_CHECKING:
    from torch import Tensor

    from afd_connectors.step import Step


class Echo(AttentionPort):
    """Copies rows on the device."""

    _rows: Tensor

    def begin(self, step: Step) -> None:
        """Nobody is told."""

    def send(self, step: Step, layer: int, hidden: Tensor, router: Tensor | None = None, *, stage: int = 0) -> None:
        """Keeps the rows."""
        self._rows = hidden

    def recv(self, step: Step, layer: int, out: Tensor, *, stage: int = 0) -> None:
        """The rows that were sent."""
        out.copy_(self._rows)

    def peers(self) -> tuple[PeerStatus, ...]:
        """None."""
        return ()

    def close(self) -> None:
        """Nothing is open."""


class NoTransport(Connector):
    """For measuring only."""

    name: ClassVar[str] = "none"
    features: ClassVar[frozenset[str]] = frozenset({"graph", "variable_tokens"})
    devices: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda"})

    def bytes_needed(self) -> int:
        """See Connector."""
        return 0

    def make_attention_port(self) -> AttentionPort:
        """See Connector."""
        return Echo()

    def make_ffn_port(self) -> FFNPort:
        """See Connector."""
        raise ValueError("connector 'none' has no FFN end; it is for timing the attention role alone.")
