"""CPU tensors between processes and hosts over TCP: an attention rank survives a restart of its FFN rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from afd_connectors.ports import Reach
from afd_connectors.transports.paired.connector import Paired

if TYPE_CHECKING:
    from afd_connectors.listener import Arrival
    from afd_connectors.transports.paired.lines import MakeLine
    from afd_connectors.transports.paired.peer import Peer


class Tcp(Paired):
    """One control and one data connection per pair of ranks."""

    name: ClassVar[str] = "tcp"
    reach: ClassVar[Reach] = "network"

    def bytes_needed(self) -> int:
        """See Connector; in host memory."""
        if self.layout.role == "attention":
            return self.shape.stages * (self.shape.exchange_bytes + self.shape.hidden_bytes)
        return self.shape.stages * len(self.layout.peers) * self.shape.exchange_bytes + self.gathered_bytes

    def line_maker(self) -> MakeLine:
        """See Paired."""
        from afd_connectors.transports.tcp_line import StreamLine

        return lambda peer, dialled, stages: StreamLine(peer, dialled, stages, self.settings.timeout_s)

    def seat_maker(self) -> Callable[[Arrival], Peer]:
        """See Paired."""
        from afd_connectors.transports.tcp_peer import StreamSeats

        return StreamSeats(self.layout, self.shape)
