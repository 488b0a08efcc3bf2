"""Where the rows of every attention rank lie in one contiguous batch of a stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from afd_connectors.transports.enqueued.carrier import Block, Failures, Transfer
from afd_connectors.transports.enqueued.peer import Peer


@dataclass(frozen=True, slots=True)
class Part:
    """One rank's rows of a batch; peer is None when its connection is another than the one that announced."""

    peer: Peer | None
    start: int
    rows: int


@dataclass(frozen=True, slots=True)
class Batch:
    """The ticket of a work; rows: of all parts together."""

    parts: tuple[Part, ...]
    rows: int

    def issue(
        self, call: Callable[[Sequence[Transfer]], Failures], blocks: Sequence[Block], layer: int, stage: int,
        failed: Callable[[Peer, str], None],
    ) -> None:  # fmt: skip
        """Enqueues the transfers of every living peer, all together, so that none waits for another.

        blocks: the tensors whose rows are the batch's. failed: called for a peer on whose link nothing can be enqueued.
        """
        alive = self.alive()
        transfers = [
            Transfer(peer.link, block.address + part.start * block.width, part.rows, layer, stage, block.width)
            for part, peer in alive
            for block in blocks
        ]
        for transfer, reason in call(transfers):
            failed(next(peer for _, peer in alive if peer.link is transfer.link), reason)

    def alive(self) -> list[tuple[Part, Peer]]:
        """The parts whose peers are there."""
        return [(part, part.peer) for part in self.parts if part.peer is not None and part.peer.link.lost is None]

    @property
    def only(self) -> Peer | None:
        """The one whose rows are all there are, None where there are several or it is gone."""
        return self.parts[0].peer if len(self.parts) == 1 else None
