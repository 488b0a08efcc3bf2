"""An attention rank's connections to one FFN rank: steps on the control channel, rows on the link."""

from __future__ import annotations

import contextlib
import socket
import time

from afd_connectors.address import Address, shown
from afd_connectors.channel import Channel
from afd_connectors.deadline import Deadline
from afd_connectors.dial import dial
from afd_connectors.errors import ConnectorError
from afd_connectors.event import Event
from afd_connectors.handshake import Identity
from afd_connectors.listener import Arrival
from afd_connectors.step import Step
from afd_connectors.transports.nccl.link import Issuing, Link
from afd_connectors.transports.nccl.meeting import accept


class Line:
    """One connected FFN rank; ``link.lost`` says why it is not connected any more."""

    def __init__(self, peer: int, control: socket.socket, data: socket.socket, link: Link) -> None:
        self.peer, self.link = peer, link
        self.channel = Channel(control)
        self._data = data

    def announce(self, step: Step) -> None:
        """Sends a step; a failure loses the line and is raised as PeerLost."""
        try:
            self.channel.announce(step)
        except ConnectorError as error:
            self.lose(error.message)
            raise

    def send(self, address: int, count: int, stream: int) -> None:
        """See Link."""
        self.link.send(address, count, stream)

    def recv(self, address: int, count: int, stream: int) -> None:
        """See Link."""
        self.link.recv(address, count, stream)

    def look(self, timeout_s: float, event: Event | None = None) -> None:
        """Takes in what arrived, shows life where `event` is given, and loses the line of a dead or silent peer."""
        if self.link.lost is not None:
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
        self.link.lose(reason)
        for sock in (self.channel.sock, self._data):
            with contextlib.suppress(OSError):  # not connected any more, which is what is wanted
                sock.shutdown(socket.SHUT_RDWR)

    def free(self) -> None:
        """Closes the sockets; only once no other thread uses them."""
        self.channel.sock.close()
        self._data.close()


def connect(address: Address, identity: Identity, peer: int, issuing: Issuing, deadline: Deadline) -> Line:
    """One try to reach FFN rank `peer`; HandshakeRefused or another ConnectorError when it fails."""
    dialled = dial(address, identity, peer, deadline)
    arrival = Arrival(peer, dialled.control, dialled.data, shown(address))
    try:
        link = accept(arrival, issuing, deadline)
    except ConnectorError:
        dialled.control.close()
        dialled.data.close()
        raise
    line = Line(peer, dialled.control, dialled.data, link)
    line.channel.seen = time.monotonic()
    return line
