"""How two ranks that have agreed on the CPU channel get their communicators; every wait has a deadline."""

from __future__ import annotations

import logging
import socket
import threading

from afd_connectors.deadline import Deadline
from afd_connectors.errors import ConnectorError, DeadlineExceeded, FrameError, HandshakeRefused, quoted
from afd_connectors.handshake import check_kind, recv_message, send_message, text
from afd_connectors.listener import Arrival
from afd_connectors.transports.nccl.library import ID_BYTES
from afd_connectors.transports.nccl.link import ATTENTION, FFN, Issuing, Link

log = logging.getLogger("afd.connectors")
TYPE = "nccl"
MEET_S = 60.0  # the first communicator of a process loads kernels and looks at the whole host


def offer(arrival: Arrival, issuing: Issuing) -> Link:
    """The FFN side, over the agreed data connection; ConnectorError when the other side does not join."""
    deadline = Deadline(MEET_S)
    idents = [issuing.library.unique_id() for _ in range(2)]
    version = issuing.library.version()
    message = {"say": TYPE, "version": version, "request": idents[0].hex(), "reply": idents[1].hex()}
    send_message(arrival.data, message, deadline)
    answer = recv_message(arrival.data, deadline)
    if answer.get("say") != "join":
        raise HandshakeRefused(f"attention rank {arrival.rank} does not join: {quoted(answer.get('reason'))}.")
    arrival.data.settimeout(None)
    return _join(issuing, idents, FFN, deadline)


def accept(data: socket.socket, peer: int, issuing: Issuing, deadline: Deadline) -> Link:
    """The attention side; HandshakeRefused when the libraries differ, ConnectorError when FFN rank `peer` is away."""
    limit = Deadline(deadline.slice(MEET_S))
    message = recv_message(data, limit)
    try:
        check_kind(message, TYPE, "nccl-p2p")
    except HandshakeRefused as refused:
        send_message(data, {"say": "refuse", "reason": refused.message}, limit)
        raise
    own, theirs = issuing.library.version(), text(message, "version")
    if own != theirs:
        reason = (
            f"attention rank has NCCL {own}, FFN rank {peer} has NCCL {quoted(theirs)}; "
            "both roles need the same version."
        )
        send_message(data, {"say": "refuse", "reason": reason}, limit)
        raise HandshakeRefused(reason)
    idents = [_ident(text(message, key)) for key in ("request", "reply")]
    send_message(data, {"say": "join"}, limit)
    data.settimeout(None)
    return _join(issuing, idents, ATTENTION, limit)


def rehearse(issuing: Issuing) -> None:
    """Makes and ends a communicator with nobody, on a thread of its own.

    The first of a process takes longer than all others, and a standby makes its first when it is waited for.
    """

    def alone() -> None:
        try:
            issuing.device.bind()
            issuing.library.abort(issuing.library.join(issuing.library.unique_id(), 0, 1))
        except ConnectorError as error:
            log.warning("a first communicator could not be made: %s", error)

    threading.Thread(target=alone, name="afd-rehearsal", daemon=True).start()


def _ident(spelled: str) -> bytes:
    try:
        ident = bytes.fromhex(spelled)
    except ValueError:
        ident = b""
    if len(ident) != ID_BYTES:
        raise FrameError(f"a communicator's id has {ID_BYTES} bytes in hexadecimal, found {quoted(spelled)}.")
    return ident


def _join(issuing: Issuing, idents: list[bytes], rank: int, deadline: Deadline) -> Link:
    """Joins both communicators and sends one byte each way, on a thread that can be left behind."""
    made: list[int] = []
    links: list[Link] = []
    errors: list[Exception] = []
    over = threading.Lock()  # taken for good by whichever comes first: the link, or the end of the wait for it

    def join() -> None:
        link: Link | None = None
        try:
            issuing.device.bind()
            for ident in idents:
                made.append(issuing.library.join(ident, rank, 2))
            request, reply = made
            link = Link(issuing, *((reply, request) if rank == FFN else (request, reply)), 1 - rank)
            _greet(issuing, link, rank)
            if over.acquire(blocking=False):
                links.append(link)
                return
        except Exception as error:  # noqa: BLE001  # told to the thread that waits for this one
            errors.append(error)
        if link is not None:
            link.lose("it was not made in time")
        else:
            for communicator in made:
                issuing.library.abort(communicator)

    thread = threading.Thread(target=join, name="afd-join", daemon=True)
    thread.start()
    thread.join(deadline.remaining())
    if not over.acquire(blocking=False):
        thread.join(1.0)  # it has the link and is about to hand it over
        return links[0]
    if errors:
        raise ConnectorError(f"the communicators could not be made: {errors[0]}") from errors[0]
    raise DeadlineExceeded(f"the communicators were not there within {deadline.seconds:g} s")


def _greet(issuing: Issuing, link: Link, rank: int) -> None:
    """The first transfer of a communicator connects its buffers, which must not happen inside a step."""
    import torch

    byte = torch.zeros(1, dtype=torch.uint8, device=issuing.device.name)

    def there() -> None:
        link.send(byte.data_ptr(), 1, issuing.device.stream())

    def back() -> None:
        link.recv(byte.data_ptr(), 1, issuing.device.stream())

    for call in (back, there) if rank == FFN else (there, back):
        issuing.device.settle(call)
