"""CPU tensors between processes of one host through shared memory: no copy in the kernel, no system call when busy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from afd_connectors.ports import Reach
from afd_connectors.transports.paired.connector import Paired
from afd_connectors.transports.shm_plan import Plan

if TYPE_CHECKING:
    from afd_connectors.listener import Arrival
    from afd_connectors.transports.paired.lines import MakeLine
    from afd_connectors.transports.paired.peer import Peer


class Shm(Paired):
    """One segment of anonymous memory per pair of ranks, beside the connections on which they agree.

    A side that waits yields the processor between two looks, and sleeps after a few milliseconds.
    """

    name: ClassVar[str] = "shm"
    reach: ClassVar[Reach] = "host"
    in_memory: ClassVar[bool] = True

    def bytes_needed(self) -> int:
        """See Connector; in host memory, segments counted on both sides."""
        segments = len(self.layout.peers) * Plan(self.shape).total
        if self.layout.role == "attention":
            return segments + self.shape.stages * (self.shape.exchange_bytes + self.shape.hidden_bytes)
        return segments + self.gathered_bytes

    def line_maker(self) -> MakeLine:
        """See Paired."""
        from afd_connectors.transports.shm_line import MemoryLine

        return lambda peer, dialled, stages: MemoryLine(peer, dialled, stages, self.settings.timeout_s, self.shape)

    def seat_maker(self) -> Callable[[Arrival], Peer]:
        """See Paired."""
        from afd_connectors.transports.shm_peer import MemoryPeer

        return lambda arrival: MemoryPeer(arrival, self.layout, self.shape)
