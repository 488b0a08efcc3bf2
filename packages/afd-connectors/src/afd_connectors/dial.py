"""The attention side's way in: connects to an FFN rank, agrees with it, and brings the data connection."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from afd_connectors.address import Address, fault, shown
from afd_connectors.deadline import Deadline
from afd_connectors.errors import ConnectorError, FrameError, quoted
from afd_connectors.handshake import HELLO_S, Identity, greet_ffn, recv_message, send_message


class Unanswered(ConnectorError):
    """Nobody listens there, so nobody has noticed the try."""


@dataclass(frozen=True, slots=True)
class Dialled:
    """Both connections of an agreed pair, blocking."""

    control: socket.socket
    data: socket.socket

    def close(self) -> None:
        """Ends both."""
        self.control.close()
        self.data.close()


def dial(address: Address, me: Identity, peer: int, deadline: Deadline) -> Dialled:
    """One try to reach FFN rank `peer`, at most HELLO_S seconds and never beyond `deadline`.

    Raises HandshakeRefused when the peer or this side refuses, Unanswered when it cannot be reached, another
    ConnectorError when it does not do its part.
    """
    limit = Deadline(deadline.slice(HELLO_S))
    control = _connect(address, limit)
    data: socket.socket | None = None
    try:
        session = greet_ffn(control, me, peer, limit)
        data = _connect(address, limit)
        send_message(data, {"say": "attach", "token": session.token, "proof": session.proof}, limit)
        ready = recv_message(data, limit)
        if ready.get("say") != "ready":
            raise FrameError(f"a data connection is answered with 'ready', found {quoted(ready.get('say'))}.")
        control.settimeout(None)
        data.settimeout(None)
        return Dialled(control, data)
    except ConnectorError:
        control.close()
        if data is not None:
            data.close()
        raise


def _connect(address: Address, deadline: Deadline) -> socket.socket:
    try:
        sock = socket.create_connection(address, timeout=max(deadline.remaining(), 0.001))
    except (OSError, UnicodeError) as error:
        raise Unanswered(f"{shown(address)} does not answer: {fault(error)}") from error
    try:
        # A local port that nobody listens on can be given to the caller itself, which then talks to itself.
        alone = sock.getsockname() == sock.getpeername()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:  # reset at once
        sock.close()
        raise Unanswered(f"{shown(address)} does not answer: {fault(error)}") from error
    if alone:
        sock.close()
        raise Unanswered(f"{shown(address)} does not answer: nothing listens there")
    return sock
