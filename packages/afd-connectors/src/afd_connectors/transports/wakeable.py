"""What lets a thread be woken that waits for its peers in a poll, and lets it stay awake while the next is near."""

from __future__ import annotations

import socket
import time

from afd_connectors.awake import AWAKE_S


class Wakeable:
    """Waits on one thread, woken by any: the thread polls `_wakes` beside its peers, and not before `_awake_until`."""

    def __init__(self) -> None:
        self._waker, self._wakes = socket.socketpair()
        self._waker.setblocking(False)
        self._awake_until = 0.0

    def wake(self) -> None:
        """Ends the wait; callable from any thread."""
        try:
            self._waker.send(b"!")
        except OSError:  # full: the thread is about to wake anyway; closed: there is nothing to wake
            return

    def stay_awake(self) -> None:
        """An answer has left or a step was announced, so the next request is near."""
        self._awake_until = time.monotonic() + AWAKE_S

    def close(self) -> None:
        """Frees what `wake` uses."""
        self._waker.close()
        self._wakes.close()
