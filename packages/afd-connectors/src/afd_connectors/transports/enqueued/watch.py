"""Sees within milliseconds that a peer's process ended, and within its limit that it is silent."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterable

from afd_connectors.channel import Channel

SWEEP_S = 0.25
_ENDED = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class Watch:
    """A thread that calls `sweep` a few times a second, and at once when one of `channels` ends.

    It exists because the threads that use a port may wait for a device that waits for the peer, and nothing on a
    device has a limit. `sweep` must not raise and must not wait.
    """

    def __init__(self, channels: Callable[[], Iterable[Channel]], sweep: Callable[[], None]) -> None:
        self._channels, self._sweep = channels, sweep
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="afd-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; a sweep that is under way is waited for."""
        self._closed.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(4 * SWEEP_S)

    def _run(self) -> None:
        while not self._closed.is_set():
            poll, count = select.poll(), 0
            for channel in self._channels():
                number = channel.sock.fileno()
                if channel.lost is None and number >= 0:
                    poll.register(number, _ENDED)
                    count += 1
            if count:
                poll.poll(SWEEP_S * 1000)
            else:
                self._closed.wait(SWEEP_S)
            if not self._closed.is_set():
                self._sweep()
