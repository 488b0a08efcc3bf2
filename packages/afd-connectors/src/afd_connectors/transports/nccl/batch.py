"""Where the rows of every attention rank lie in one contiguous batch of a stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from afd_connectors.errors import ConnectorError
from afd_connectors.transports.nccl.library import grouped
from afd_connectors.transports.nccl.link import Issuing
from afd_connectors.transports.nccl.peer import Peer


@dataclass(frozen=True, slots=True)
class Part:
    """One rank's bytes of a batch; peer is None when its connection is another than the one that announced."""

    peer: Peer | None
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class Batch:
    """The ticket of a work; rows: of all parts together."""

    parts: tuple[Part, ...]
    rows: int

    def issue(
        self, issuing: Issuing, address: int, call: Callable[[Peer, int, int, int], None],
        failed: Callable[[Peer, str], None],
    ) -> None:  # fmt: skip
        """Enqueues one transfer per living peer, all together, so that none waits for another.

        failed: called for a peer on whose link nothing can be enqueued.
        """
        stream = issuing.device.stream()
        alive = [(part, part.peer) for part in self.parts if part.peer is not None and part.peer.link.lost is None]
        if len(alive) == 1:  # a group around one call costs as much as the call
            self._one(*alive[0], address, stream, call, failed)
        elif alive:
            with issuing.lock, grouped(issuing.library):
                for part, peer in alive:
                    self._one(part, peer, address, stream, call, failed)

    @staticmethod
    def _one(
        part: Part, peer: Peer, address: int, stream: int, call: Callable[[Peer, int, int, int], None],
        failed: Callable[[Peer, str], None],
    ) -> None:  # fmt: skip
        try:
            call(peer, address + part.start, part.count, stream)
        except ConnectorError as error:
            failed(peer, error.message)
