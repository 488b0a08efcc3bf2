"""A connected pair of ranks over a window, and its certain end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from afd_connectors.transports.nvlink.moves import told
from afd_connectors.transports.nvlink.window import Window

if TYPE_CHECKING:
    from torch import Tensor

MISMATCH, ENDED = 2, 3  # see kernels.cu


class Link:
    """See enqueued.carrier.Link. limit_s: of every wait on the device; rooms: per stage, where rows arrive as they are;
    freed: told that nothing is enqueued on it any more.
    """

    def __init__(self, window: Window, limit_s: float, rooms: list[Tensor], freed: Callable[[Link], None]) -> None:
        self.window, self.since = window, time.monotonic()
        self._limit_s, self._rooms, self._freed = limit_s, rooms, freed
        self._lost: str | None = None
        self._losing = threading.Lock()

    @property
    def lost(self) -> str | None:
        """See Link; the device's own verdict counts from the moment that it is written."""
        if self._lost is None:
            kind, expected, found = self.window.error()
            if kind:
                self.lose(self._verdict(kind, expected, found))
        return self._lost

    def lose(self, reason: str) -> None:
        """See Link."""
        with self._losing:
            if self._lost is None:
                self._lost, self.since = reason, time.monotonic()
                self.window.end()

    def ended(self, limit_s: float) -> bool:  # noqa: ARG002
        """See Link; its memory is given back when its window is used again."""
        return True

    def free(self) -> None:
        """See Link."""
        self.lose("this side ended the connection")
        self._freed(self)

    def landing(self, stage: int, rows: int) -> Tensor | None:
        """See Link."""
        return self._rooms[stage][:rows] if self._rooms else None

    def _verdict(self, kind: int, expected: int, found: int) -> str:
        rows, layer, stage = told(expected)
        what = f"layer {layer}, stage {stage} ({rows} rows)"
        if kind == ENDED:
            return f"this side ended the wait for {what}"
        if kind != MISMATCH:
            return f"it did not send {what} within {self._limit_s:g} s by the device's clock"
        rows, layer, stage = told(found & 0xFFFFFFFF)
        return f"it sent layer {layer}, stage {stage} ({rows} rows) while {what} was awaited"
