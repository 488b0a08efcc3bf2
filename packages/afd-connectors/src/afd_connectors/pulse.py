"""Calls a function every second on its own thread, so that a side that computes long still shows life."""

from __future__ import annotations

import threading
from collections.abc import Callable

from afd_connectors.channel import HEARTBEAT_S


class Pulse:
    """Beats until closed; `beat` must not raise and must not wait."""

    def __init__(self, beat: Callable[[], None], every_s: float = HEARTBEAT_S) -> None:
        self._beat, self._every_s = beat, every_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="afd-pulse", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(self._every_s):
            self._beat()

    def close(self) -> None:
        """Ends the thread; a beat that is under way is waited for."""
        self._closed.set()
        self._thread.join(self._every_s)
