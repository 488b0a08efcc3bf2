"""nccl-p2p: device tensors of two processes, one communicator per direction and pair of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from afd_connectors.ports import AttentionPort, Connector, FFNPort, Reach
from afd_connectors.transports.enqueued.device import CudaDevice, Device
from afd_connectors.transports.nccl.carrier import NcclCarrier
from afd_connectors.transports.nccl.library import Library, load
from afd_connectors.transports.nccl.link import Issuing
from afd_connectors.transports.paired.connector import check_options, gather_seconds


class NcclP2p(Connector):
    """Rows go through NCCL on the stream that is current at each call, so exchanges can be captured in graphs.

    Options: ffn_addresses, a list of "host:port", one per FFN rank; standby_addresses, a list of "host:port" that
    attention turns to when it loses an FFN rank; gather_ms, how long an FFN rank waits for the steps of attention
    ranks that were served with the last one (default 1). Ports belong to the CUDA device that is current on the
    thread that opens them.

    A lost FFN rank voids the step, which the user of the port repeats as a whole once the same port has joined its
    successor, see DeviceAttentionPort.
    """

    name: ClassVar[str] = "nccl-p2p"
    features: ClassVar[frozenset[str]] = frozenset({"graph", "router", "variable_tokens", "reconnect"})
    devices: ClassVar[frozenset[str]] = frozenset({"cuda"})
    reach: ClassVar[Reach] = "network"

    @classmethod
    def check_options(cls, extra: Mapping[str, object]) -> None:
        """See Connector."""
        check_options(cls.name, extra)

    def bytes_needed(self) -> int:
        """See Connector; what NCCL itself keeps is not counted."""
        if self.layout.role == "attention":
            return 0
        return self.shape.stages * len(self.layout.peers) * self.shape.exchange_bytes

    def make_attention_port(self) -> AttentionPort:
        """See Connector."""
        from afd_connectors.transports.enqueued.attention import EnqueuedAttentionPort

        return EnqueuedAttentionPort(self.layout, self.shape, self.facts, self.settings, self.carrier())

    def make_ffn_port(self) -> FFNPort:
        """See Connector; the port is a SteppedFFNPort."""
        from afd_connectors.transports.enqueued.ffn import EnqueuedFFNPort

        gather_s = gather_seconds(self.settings.extra)
        return EnqueuedFFNPort(self.layout, self.shape, self.facts, self.settings, self.carrier(), gather_s)

    def carrier(self) -> NcclCarrier:
        """One per port."""
        return NcclCarrier(Issuing(*self.means()))

    def means(self) -> tuple[Library, Device]:
        """What moves the rows, and where they lie."""
        return load(), CudaDevice()
