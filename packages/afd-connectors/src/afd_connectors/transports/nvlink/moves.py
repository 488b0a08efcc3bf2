"""Enqueues messages: which kernel or copy, with which blocks, for one pair of ranks or several at once."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from afd_connectors.transports.nvlink.sizes import MOST_PARTS, Plan, plan_of

if TYPE_CHECKING:
    from afd_connectors.transports.nvlink.driver import Driver

_HEAD, _PART = struct.Struct("<QII"), struct.Struct("<6Q4I")
_BYTES = _HEAD.size + MOST_PARTS * _PART.size
ROWS, LAYERS, STAGES = 1 << 20, 1 << 11, 2


class Part(NamedTuple):
    """One message of one pair of ranks, as addresses of the device; see kernels.cu. size: bytes of rows."""

    start: int
    to: int
    flags: int
    lines: int
    counts: int
    status: int
    size: int
    head: int


def head_of(rows: int, layer: int, stage: int) -> int:
    """What both sides must mean by a message."""
    return rows << 12 | layer << 1 | stage


def told(head: int) -> tuple[int, int, int]:
    """(rows, layer, stage) of a head."""
    return head >> 12, head >> 1 & LAYERS - 1, head & 1


class Moves:
    """Enqueues on a stream. early: kernels may begin before what they depend on ended, and then wait for it."""

    def __init__(
        self, driver: Driver, limit_s: float, plan: Callable[[int], Plan] = plan_of, *, early: bool = True
    ) -> None:
        self._driver, self._limit_ns, self._plan, self._early = driver, int(limit_s * 1e9), plan, early

    def put(self, parts: Sequence[Part], stream: int) -> None:
        """Each part's rows to its peer, all parts together."""
        small, large = self._kinds(parts)
        if small:
            self._launch("afd_put_lines", [(part, plan, plan.put) for part, plan in small], stream)
        moved = [(part, plan, plan.put) for part, plan in large if not plan.cuts]
        if moved:
            self._launch("afd_put", moved, stream)
        for part, plan in large:
            begun = 0
            for cut in plan.cuts:
                start, stop = begun * plan.chunk, min(cut * plan.chunk, part.size)
                self._driver.copy(part.to + start, part.start + start, stop - start, stream)
                self._launch("afd_flags", [(part, plan, 1)], stream, (begun, cut))
                begun = cut

    def wait(self, parts: Sequence[Part], stream: int) -> None:
        """What follows on the stream finds each part's rows, or its status says why not."""
        small, large = self._kinds(parts)
        if small:
            self._launch("afd_wait_lines", [(part, plan, plan.wait) for part, plan in small], stream)
        fused = [(part, plan, plan.wait) for part, plan in large if part.to != part.start and not plan.apart]
        if fused:
            self._launch("afd_wait", fused, stream)
        alone = [(part, plan, 1) for part, plan in large if part.to == part.start or plan.apart]
        if alone:
            self._launch("afd_await", alone, stream)
        copied = [(part, plan, plan.put) for part, plan in large if part.to != part.start and plan.apart]
        if copied:
            self._launch("afd_copy", copied, stream)

    def _kinds(self, parts: Sequence[Part]) -> tuple[list[tuple[Part, Plan]], list[tuple[Part, Plan]]]:
        small: list[tuple[Part, Plan]] = []
        large: list[tuple[Part, Plan]] = []
        for part in parts:
            plan = self._plan(part.size)
            (small if plan.lines else large).append((part, plan))
        return small, large

    def _launch(
        self, kernel: str, parts: Sequence[tuple[Part, Plan, int]], stream: int, chunks: tuple[int, int] | None = None
    ) -> None:
        """chunks: those that are told, after a copy, which no kernel can begin before."""
        for first in range(0, len(parts), MOST_PARTS):
            some = parts[first : first + MOST_PARTS]
            packed = bytearray(_BYTES)
            _HEAD.pack_into(packed, 0, self._limit_ns, *(chunks or (0, 0)))
            for place, (part, plan, _) in enumerate(some):
                _PART.pack_into(
                    packed, _HEAD.size + place * _PART.size, *part[:6], part.size, plan.chunk, plan.chunks, part.head
                )
            grid = max(blocks for _, _, blocks in some), len(some)
            self._driver.launch(kernel, grid, bytes(packed), stream, early=self._early and chunks is None)
