"""Connections between accept and their place: each is greeted on its own thread, and no crowd keeps others out."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import NamedTuple

MAX_GREETINGS = 64
GRACE_S = 0.1  # many times what an honest greeting takes


class Greeting(NamedTuple):
    """A connection that is between accept and its place."""

    thread: threading.Thread
    since: float


class Greetings:
    """At most MAX_GREETINGS at a time, besides as many that were ousted and are about to end."""

    def __init__(self) -> None:
        self._here: dict[socket.socket, Greeting] = {}
        self._ousted: dict[socket.socket, Greeting] = {}
        self._lock = threading.Lock()
        self._closed = False

    def begin(self, sock: socket.socket, thread: threading.Thread) -> bool:
        """Starts the thread that greets `sock`; False when there is no room. RuntimeError when there are no threads."""
        with self._lock:
            if self._closed or not self._room():
                return False
            thread.start()  # inside the lock, so that close never joins a thread that has not begun
            self._here[sock] = Greeting(thread, time.monotonic())
            return True

    def end(self, sock: socket.socket) -> None:
        """The connection has found its place, or has none; called by the thread that greets it."""
        with self._lock:
            self._here.pop(sock, None)
            self._ousted.pop(sock, None)

    def close(self, join_s: float) -> None:
        """Ends all of them and waits up to `join_s` seconds for each thread; nobody is greeted any more."""
        with self._lock:
            self._closed = True
            ended = self._ousted | self._here
        for sock in ended:
            wake(sock)
        for greeting in ended.values():
            greeting.thread.join(join_s)

    def _room(self) -> bool:
        """Whether one more may be greeted; the one that takes longest makes room, or a few that say nothing would
        keep all others out. Called with the lock held.
        """
        if len(self._here) < MAX_GREETINGS:
            return True
        sock, oldest = next(iter(self._here.items()))
        if time.monotonic() - oldest.since < GRACE_S or len(self._ousted) >= MAX_GREETINGS:
            return False
        self._ousted[sock] = self._here.pop(sock)
        wake(sock)
        return True


def wake(sock: socket.socket) -> None:
    """Ends what the thread that greets this connection waits for; that thread frees it."""
    with contextlib.suppress(OSError):  # not connected any more, which is what is wanted
        sock.shutdown(socket.SHUT_RDWR)
