"""Where everything lies in the memory that two ranks share; arithmetic only, so it needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from afd_connectors.shape import Shape

LINE = 64  # bytes of a cache line: what is written by different sides lies on different ones
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class Plan:
    """Where everything lies in a segment of `total` bytes: a line per mark and head, then the rows, by stage."""

    shape: Shape

    @property
    def _rows_at(self) -> int:
        return _up((2 + 4 * self.shape.stages) * LINE, _PAGE)

    @property
    def _stage_bytes(self) -> int:
        return 2 * _up(self.shape.hidden_bytes, LINE) + _up(self.shape.router_bytes, LINE)

    @property
    def total(self) -> int:
        """Bytes of the segment, whole pages."""
        return _up(self._rows_at + self.shape.stages * self._stage_bytes, _PAGE)

    def line(self, stage: int, kind: int) -> int:
        """Offset of a line of `stage`. kind: 0 request mark, 1 reply mark, 2 request head, 3 reply head."""
        return (2 + 4 * stage + kind) * LINE

    def rows(self, stage: int) -> tuple[int, int, int]:
        """Offsets of the request's rows, the reply's rows and the request's logits."""
        start = self._rows_at + stage * self._stage_bytes
        step = _up(self.shape.hidden_bytes, LINE)
        return start, start + step, start + 2 * step


def _up(count: int, to: int) -> int:
    return -(-count // to) * to
