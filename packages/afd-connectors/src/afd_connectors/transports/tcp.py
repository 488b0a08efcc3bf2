"""CPU tensors between processes and hosts over TCP: an attention rank survives a restart of its FFN rank."""

from __future__ import annotations

from typing import ClassVar

from afd_connectors.ports import AttentionPort, FFNPort, Reach
from afd_connectors.transports.paired.connector import Paired


class Tcp(Paired):
    """One control and one data connection per pair of ranks."""

    name: ClassVar[str] = "tcp"
    reach: ClassVar[Reach] = "network"

    def bytes_needed(self) -> int:
        """See Connector; in host memory."""
        if self.layout.role == "attention":
            return self.shape.stages * (self.shape.exchange_bytes + self.shape.hidden_bytes)
        return self.shape.stages * len(self.layout.peers) * self.shape.exchange_bytes + self.gathered_bytes

    def make_attention_port(self) -> AttentionPort:
        """See Connector."""
        from afd_connectors.transports.paired.attention import PairedAttentionPort
        from afd_connectors.transports.tcp_line import StreamLine

        return PairedAttentionPort(
            self.name,
            self.layout,
            self.shape,
            self.facts,
            self.settings,
            lambda peer, dialled, stages: StreamLine(peer, dialled, stages, self.settings.timeout_s),
        )

    def make_ffn_port(self) -> FFNPort:
        """See Connector."""
        from afd_connectors.transports.paired.ffn import PairedFFNPort
        from afd_connectors.transports.tcp_peer import StreamSeats

        return PairedFFNPort(
            self.name,
            self.layout,
            self.shape,
            self.facts,
            self.settings,
            StreamSeats(self.layout, self.shape),
            in_memory=False,
            gather_s=self.gather_s,
        )
