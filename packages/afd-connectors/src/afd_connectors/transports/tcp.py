"""CPU tensors between processes and hosts over TCP: an attention rank survives a restart of its FFN rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from afd_connectors import address
from afd_connectors.ports import AttentionPort, Connector, FFNPort, refuse_unknown

GATHER_OPTION = "gather_ms"


class Tcp(Connector):
    """One control and one data connection per pair of ranks.

    Options: ffn_addresses, a list of "host:port", one per FFN rank; gather_ms, how long an FFN rank waits for
    the rows of attention ranks that stand at the same layer before it computes without them (default 1).
    """

    name: ClassVar[str] = "tcp"
    features: ClassVar[frozenset[str]] = frozenset({"router", "variable_tokens", "reconnect"})
    devices: ClassVar[frozenset[str]] = frozenset({"cpu"})

    @classmethod
    def check_options(cls, extra: Mapping[str, object]) -> None:
        """See Connector."""
        refuse_unknown(cls.name, extra, (address.OPTION, GATHER_OPTION))
        if address.OPTION in extra:
            address.parse(extra[address.OPTION])
        gather_seconds(extra)

    def bytes_needed(self) -> int:
        """See Connector; in host memory."""
        if self.layout.role == "attention":
            return self.shape.stages * (self.shape.exchange_bytes + self.shape.hidden_bytes)
        peers = len(self.layout.peers)
        gathered = peers if peers > 1 else 0
        return self.shape.stages * (peers + gathered) * self.shape.exchange_bytes

    def make_attention_port(self) -> AttentionPort:
        """See Connector."""
        from afd_connectors.transports.tcp_attention import TcpAttentionPort

        return TcpAttentionPort(self.layout, self.shape, self.facts, self.settings)

    def make_ffn_port(self) -> FFNPort:
        """See Connector."""
        from afd_connectors.transports.tcp_ffn import TcpFFNPort

        gather_s = gather_seconds(self.settings.extra)
        return TcpFFNPort(self.layout, self.shape, self.facts, self.settings, gather_s)


def gather_seconds(extra: Mapping[str, object]) -> float:
    """The gather_ms option in seconds; ValueError when it is not a number from 0 to 1000."""
    value = extra.get(GATHER_OPTION, 1)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1000:
        raise ValueError(f"{GATHER_OPTION} must be a number of milliseconds from 0 to 1000, found {value!r}.")
    return value / 1000
