"""Keeps a rank's slot on the board up to date while its worker is busy, or waits."""

from __future__ import annotations

from collections.abc import Callable

from afd_connectors.ports import AttentionPort
from afd_connectors.pulse import Pulse
from afd_workers.health import board
from afd_workers.health.standing import Standing, standing

EVERY_S = 0.25


class Report:
    """Looks at a port on a thread of its own until closed; underway: whether an exchange is open now."""

    def __init__(self, rank: int, port: AttentionPort, underway: Callable[[], bool]) -> None:
        self._rank, self._port, self._underway = rank, port, underway
        self._said: Standing | None = None
        self._board = board.find()
        self._pulse = None if self._board is None else Pulse(self._look, EVERY_S)

    def close(self) -> None:
        """Ends the thread; may be called twice. The board goes with the process, as the thread may still use it."""
        if self._pulse is not None:
            self._pulse.close()

    def _look(self) -> None:
        found = standing(self._port.peers(), underway=self._underway())
        if found != self._said and self._board is not None:
            self._board.post(self._rank, found)
            self._said = found
