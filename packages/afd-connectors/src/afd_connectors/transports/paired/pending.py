"""One stage's open exchange on an attention rank, kept so that it can be sent again."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from afd_connectors.layout import Layout
from afd_connectors.shape import Shape
from afd_connectors.transports.paired.buffers import Buffer, router_row_bytes
from afd_connectors.transports.paired.head import request_frame

Views = tuple[memoryview, memoryview | None]
Part = tuple[int, bytes, memoryview, memoryview | None]  # stage, head, rows, logits


class Pending:
    """blocks: FFN rank -> (start, stop) of the rows it gets, without empty ones; answered: ranks that answered."""

    def __init__(self, layout: Layout, shape: Shape) -> None:
        self.row_bytes = shape.row_bytes
        self.blocks: Mapping[int, tuple[int, int]] = {}
        self.answered: set[int] = set()
        self._shape = shape
        self._saved: set[int] = set()
        self._kept = Buffer(shape, shape.tokens)
        self._answers = Buffer(shape, shape.tokens, router=False)
        self._blocks = lru_cache(maxsize=256)(lambda rows: blocks(layout, rows))
        self._seq = self._layer = self._stage = self._rows = self._code = 0

    def set(self, seq: int, layer: int, stage: int, rows: int, code: int) -> None:
        """Begins an exchange of `rows` rows with logits of dtype `code`."""
        if rows != self._rows:  # the layers of a step ask for the same ones again and again
            self.blocks = self._blocks(rows)
        self._seq, self._layer, self._stage, self._rows, self._code = seq, layer, stage, rows, code
        self.answered.clear()
        self._saved.clear()

    def part(self, peer: int, hidden: memoryview, router: memoryview | None) -> Part:
        """What FFN rank `peer` gets of an exchange whose bytes are given."""
        start, stop = self.blocks[peer]
        head = request_frame(self._seq, self._layer, self._stage, stop - start, self._code)
        if router is None and stop - start == self._rows:
            return self._stage, head, hidden, None
        rows = hidden[start * self.row_bytes : stop * self.row_bytes]
        if router is None:
            return self._stage, head, rows, None
        width = router_row_bytes(self._shape, self._code)
        return self._stage, head, rows, router[start * width : stop * width]

    def keep(self, hidden: memoryview, router: memoryview | None) -> None:
        """Copies the bytes, because the caller may write its tensors again before the answer is there."""
        self._kept.hidden_bytes[: len(hidden)] = hidden
        if router is not None:
            self._kept.router_bytes[: len(router)] = router
        self._saved.update(self.blocks)

    def save(self, peer: int, held: Views | None) -> None:
        """Copies the block of FFN rank `peer` from the memory of a line that is given up, unless it was kept."""
        if held is None or peer not in self.blocks or peer in self._saved:
            return
        start, stop = self.blocks[peer]
        hidden, router = held
        self._kept.hidden_bytes[start * self.row_bytes : stop * self.row_bytes] = hidden
        if router is not None:
            width = router_row_bytes(self._shape, self._code)
            self._kept.router_bytes[start * width : stop * width] = router
        self._saved.add(peer)

    def kept_part(self, peer: int) -> Part:
        """What FFN rank `peer` gets, from the copy."""
        rows = self._kept.hidden_bytes[: self._rows * self.row_bytes]
        return self.part(peer, rows, self._kept.router_bytes if self._code else None)

    def answer_room(self, peer: int) -> memoryview:
        """Room for the answer of FFN rank `peer` where it arrives before it is asked for."""
        start, stop = self.blocks[peer]
        return self._answers.hidden_bytes[start * self.row_bytes : stop * self.row_bytes]


def blocks(layout: Layout, rows: int) -> Mapping[int, tuple[int, int]]:
    """FFN rank -> (start, stop) of those `rows` rows that it gets, without empty ones."""
    return {peer: (start, stop) for peer, start, stop in layout.split(rows) if start < stop}
