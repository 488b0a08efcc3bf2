"""Whether the thread that uses a port may still enqueue what it began: memory must not go away under that."""

from __future__ import annotations

import threading
import time


class User:
    """The one thread that enqueues on a port."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def begun(self) -> None:
        """The calling thread enqueues a step from now on, perhaps from a graph, of which a port sees nothing."""
        self._thread = threading.current_thread()

    def done(self) -> None:
        """The calling thread has enqueued what it began."""
        self._thread = None

    def away(self, limit_s: float) -> bool:
        """Waits at most `limit_s` seconds until only the calling thread could enqueue anything; whether that is so."""
        until = time.monotonic() + limit_s
        while True:
            thread = self._thread
            if thread is None or thread is threading.current_thread() or not thread.is_alive():
                return True
            if time.monotonic() > until:
                return False
            time.sleep(0.005)
