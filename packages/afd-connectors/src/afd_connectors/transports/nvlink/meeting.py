"""How two ranks that have agreed on the CPU channel get at each other's memory; every wait has a deadline."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from afd_connectors.deadline import Deadline
from afd_connectors.errors import ConnectorError, FrameError, HandshakeRefused, quoted
from afd_connectors.handshake import check_kind, recv_message, send_message
from afd_connectors.transports.handover import check_declined, decline, give, refuse, take
from afd_connectors.transports.nvlink.failed import CallFailed
from afd_connectors.transports.nvlink.window import Window

TYPE = "nvlink"
MEET_S = 30.0
_ELSEWHERE = (
    "connector 'nvlink' needs both ranks on one host and in one network namespace, and devices that map each other's "
    "memory; use connector 'nccl-p2p' otherwise"
)


def offer(data: socket.socket, window: Window) -> None:
    """The FFN side; ConnectorError when the memory of either side cannot be reached from the other."""
    limit = Deadline(MEET_S)
    send_message(data, {"say": TYPE, "bytes": window.slots.total}, limit)
    try:
        theirs = take(data, limit, _ELSEWHERE)
        try:
            _give(data, window, limit)
            _attach(data, window, theirs, limit)
        finally:
            os.close(theirs)
    except OSError as error:
        raise ConnectorError(f"the memory could not be exchanged: {error}; {_ELSEWHERE}") from error
    data.settimeout(None)


def accept(data: socket.socket, window: Window, deadline: Deadline, settle: Callable[[], None]) -> None:
    """The attention side; HandshakeRefused where a device can never map the other's memory, ConnectorError where it
    could not this time.

    settle: waits until the device uses nothing of the window's last peer.
    """
    limit = Deadline(deadline.slice(MEET_S))
    message = recv_message(data, limit)
    check_declined(message)
    try:
        check_kind(message, TYPE, TYPE)
    except HandshakeRefused as refused:
        refuse(data, refused.message, limit)
        raise
    if message.get("bytes") != window.slots.total:
        raise HandshakeRefused(
            f"attention rank keeps {window.slots.total} bytes for a peer, its FFN rank {quoted(message.get('bytes'))}; "
            "both roles need the same version."
        )
    try:
        _give(data, window, limit)
        theirs = take(data, limit, _ELSEWHERE)
        try:
            settle()
            _attach(data, window, theirs, limit)
        finally:
            os.close(theirs)
    except OSError as error:
        raise ConnectorError(f"the memory could not be exchanged: {error}; {_ELSEWHERE}") from error
    finally:
        window.forget()
    data.settimeout(None)


def _give(data: socket.socket, window: Window, limit: Deadline) -> None:
    try:
        mine = window.make()
    except ConnectorError as error:
        decline(data, error, limit)
        raise
    try:
        give(data, mine, limit)
    finally:
        os.close(mine)


def _attach(data: socket.socket, window: Window, theirs: int, limit: Deadline) -> None:
    """Nothing is sent before both sides' memory is in place."""
    try:
        window.attach(theirs)
    except CallFailed as error:
        if not error.for_good:  # such as for want of memory, which the next try may find
            decline(data, error, limit)
            raise
        reason = f"{error.message.rstrip('.')}; {_ELSEWHERE}."
        refuse(data, reason, limit)
        raise HandshakeRefused(reason) from error
    except ConnectorError as error:
        decline(data, error, limit)
        raise
    send_message(data, {"say": "mapped"}, limit)
    answer = recv_message(data, limit)
    check_declined(answer)
    if answer.get("say") != "mapped":
        raise FrameError(f"memory that is in place is called 'mapped', found {quoted(answer.get('say'))}.")
