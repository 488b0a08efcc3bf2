"""Enqueues messages: which kernel, with how many blocks, for one pair of ranks or several at once."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from afd_connectors.transports.nvlink.sizes import MOST_BLOCKS, MOST_PARTS, Plan, plan_of

if TYPE_CHECKING:
    from afd_connectors.transports.nvlink.driver import Driver

_HEAD, _PART = struct.Struct("<Q"), struct.Struct("<6Q4I")
_BYTES = _HEAD.size + MOST_PARTS * _PART.size
ROWS, LAYERS, STAGES = 1 << 20, 1 << 11, 2


class Part(NamedTuple):
    """One message of one pair of ranks, as addresses of the device; see kernels.cu. size: bytes of rows; scales: of
    rows that travel as e4m3, where in the slot theirs are, 0 of rows that travel as they are.
    """

    start: int
    to: int
    flags: int
    counts: int
    over: int
    status: int
    size: int
    head: int
    scales: int = 0


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
        """Each part's rows to its peer, all parts together; none of a window that is over."""
        planned = [(part, self._plan(part.size)) for part in parts]
        self._launch("afd_put_units", [(part, plan, plan.put) for part, plan in planned if plan.units], stream)
        self._launch("afd_put", [(part, plan, plan.put) for part, plan in planned if not plan.units], stream)

    def wait(self, parts: Sequence[Part], stream: int) -> None:
        """What follows on the stream finds each part's rows, or its status says why not."""
        planned = [(part, self._plan(part.size)) for part in parts]
        self._launch("afd_wait_units", [(part, plan, plan.wait) for part, plan in planned if plan.units], stream)
        planned = [(part, plan) for part, plan in planned if not plan.units]
        fused = [(part, plan, plan.wait) for part, plan in planned if part.to != part.start and not plan.apart]
        self._launch("afd_wait", fused, stream)
        alone = [(part, plan, 1) for part, plan in planned if part.to == part.start or plan.apart]
        self._launch("afd_await", alone, stream)
        copied = [(part, plan, plan.put) for part, plan in planned if part.to != part.start and plan.apart]
        self._launch("afd_copy", copied, stream)

    def _launch(self, kernel: str, parts: Sequence[tuple[Part, Plan, int]], stream: int) -> None:
        for first in range(0, len(parts), MOST_PARTS):
            some = parts[first : first + MOST_PARTS]
            packed = bytearray(_BYTES)
            _HEAD.pack_into(packed, 0, self._limit_ns)
            for place, (part, plan, _) in enumerate(some):
                _PART.pack_into(
                    packed, _HEAD.size + place * _PART.size, *part[:6], part.size, plan.chunk, plan.chunks, part.head
                )
            blocks = min(max(blocks for _, _, blocks in some), MOST_BLOCKS // len(some))
            self._driver.launch(kernel, (blocks, len(some)), bytes(packed), stream, early=self._early)
