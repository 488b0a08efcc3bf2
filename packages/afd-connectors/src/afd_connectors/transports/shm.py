"""CPU tensors between processes of one host through shared memory: no copy in the kernel, no system call when busy."""

from __future__ import annotations

from typing import ClassVar

from afd_connectors.ports import AttentionPort, FFNPort, Reach
from afd_connectors.transports.paired.connector import Paired
from afd_connectors.transports.shm_plan import Plan


class Shm(Paired):
    """One segment of anonymous memory per pair of ranks, beside the connections on which they agree.

    A side that waits yields the processor between two looks, and sleeps after a few milliseconds.
    """

    name: ClassVar[str] = "shm"
    reach: ClassVar[Reach] = "host"

    def bytes_needed(self) -> int:
        """See Connector; in host memory, segments counted on both sides."""
        segments = len(self.layout.peers) * Plan(self.shape).total
        if self.layout.role == "attention":
            return segments + self.shape.stages * (self.shape.exchange_bytes + self.shape.hidden_bytes)
        return segments + self.gathered_bytes

    def make_attention_port(self) -> AttentionPort:
        """See Connector."""
        from afd_connectors.transports.paired.attention import PairedAttentionPort
        from afd_connectors.transports.shm_line import MemoryLine

        return PairedAttentionPort(
            self.name,
            self.layout,
            self.shape,
            self.facts,
            self.settings,
            lambda peer, dialled, stages: MemoryLine(peer, dialled, stages, self.settings.timeout_s, self.shape),
        )

    def make_ffn_port(self) -> FFNPort:
        """See Connector."""
        from afd_connectors.transports.paired.ffn import PairedFFNPort
        from afd_connectors.transports.shm_peer import MemoryPeer

        return PairedFFNPort(
            self.name,
            self.layout,
            self.shape,
            self.facts,
            self.settings,
            lambda arrival: MemoryPeer(arrival, self.layout, self.shape),
            in_memory=True,
            gather_s=self.gather_s,
        )
