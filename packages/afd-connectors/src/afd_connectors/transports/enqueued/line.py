"""An attention rank's connections to one FFN rank: steps on the control channel, rows on the link."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping

from afd_connectors.channel import Channel
from afd_connectors.control import Logits
from afd_connectors.dial import Dialled
from afd_connectors.errors import ConnectorError
from afd_connectors.event import Event
from afd_connectors.step import Step
from afd_connectors.transports.enqueued.carrier import Link


class Line:
    """One connected FFN rank; ``lost`` says why it is not connected any more.

    logits: by layer, the dtype code of its router logits, as far as they are known by now.
    """

    def __init__(self, peer: int, dialled: Dialled, link: Link, logits: Mapping[int, int]) -> None:
        self.peer, self.link = peer, link
        self.channel = Channel(dialled.control)
        self.channel.seen = time.monotonic()
        self._data = dialled.data
        self._logits, self._told = logits, 0
        self._ended = False

    @property
    def since(self) -> float:
        """time.monotonic() at which it was made or lost."""
        return self.link.since

    @property
    def lost(self) -> str | None:
        """Why it cannot be used any more, None while it can; what the device gave up ends the sockets too."""
        reason = self.link.lost
        if reason is not None and not self._ended:
            self.lose(reason)
        return reason

    def announce(self, step: Step) -> None:
        """Sends a step; a failure loses the line and is raised as PeerLost."""
        self.tell()
        try:
            self.channel.announce(step)
        except ConnectorError as error:
            self.lose(error.message)
            raise

    def tell(self) -> None:
        """Tells of every layer's logits what was not told yet; a failure as of `announce`."""
        if self._told == len(self._logits):
            return
        try:
            for layer, code in tuple(self._logits.items())[self._told :]:
                self.channel.tell(Logits(layer, code))
                self._told += 1
        except ConnectorError as error:
            self.lose(error.message)
            raise

    def look(self, timeout_s: float, event: Event | None = None) -> None:
        """Takes in what arrived, shows life where `event` is given, and loses the line of a dead or silent peer."""
        if self.lost is not None:
            return
        try:
            self.channel.drain()
            if event is not None and self.channel.lost is None:
                self.channel.heartbeat(event)
        except ConnectorError as error:
            self.channel.lost = self.channel.lost or error.message
        if self.channel.lost is not None:
            self.lose(self.channel.lost)
        elif self.channel.silent_s() > timeout_s:
            self.lose(f"it is silent for {self.channel.silent_s():.1f} s")

    def lose(self, reason: str) -> None:
        """Ends the line for every thread and for the device."""
        self._ended = True
        self.link.lose(reason)
        for sock in (self.channel.sock, self._data):
            with contextlib.suppress(OSError):  # not connected any more, which is what is wanted
                sock.shutdown(socket.SHUT_RDWR)

    def hang_up(self) -> None:
        """See lines.Connected."""
        self.lose("this side ended the connection")

    def free(self) -> None:
        """Closes the sockets; only once no other thread uses them."""
        self.link.free()
        self.channel.sock.close()
        self._data.close()
