"""Threads of one process: the reference that other transports are compared with."""

from __future__ import annotations

from typing import ClassVar

from afd_connectors.ports import AttentionPort, Connector, FFNPort


class Loopback(Connector):
    """Both roles in one process; tensors are copied, nothing is serialised."""

    name: ClassVar[str] = "loopback"
    features: ClassVar[frozenset[str]] = frozenset({"router", "variable_tokens"})
    devices: ClassVar[frozenset[str]] = frozenset({"cpu"})

    def bytes_needed(self) -> int:
        """Nothing is kept: each exchange owns its copies."""
        return 0

    def make_attention_port(self) -> AttentionPort:
        """Waits for the FFN peers' ports to be opened by other threads."""
        from afd_connectors.transports.loopback_attention import LoopbackAttentionPort

        return LoopbackAttentionPort(self.layout, self.shape, self.facts, self.settings)

    def make_ffn_port(self) -> FFNPort:
        """Registers a hub under the settings' host and port."""
        from afd_connectors.transports.loopback_ffn import LoopbackFFNPort

        return LoopbackFFNPort(self.layout, self.shape, self.facts, self.settings)
