"""How the memory gets from the attention rank, which makes it, to the FFN rank, which finds it as it was promised."""

from __future__ import annotations

import fcntl
import os
import socket

from afd_connectors.deadline import Deadline
from afd_connectors.errors import ConnectorError, FrameError, quoted
from afd_connectors.handshake import HELLO_S, recv_message, send_message
from afd_connectors.shape import Shape
from afd_connectors.transports.handover import give, take
from afd_connectors.transports.shm_plan import Plan
from afd_connectors.transports.shm_segment import Segment

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_ELSEWHERE = "shared memory needs both ranks on one host and in one network namespace; use connector 'tcp' otherwise"


def offer(data: socket.socket, shape: Shape) -> Segment:
    """On the attention rank: makes the memory and hands it over within HELLO_S; ConnectorError when that fails."""
    limit = Deadline(HELLO_S)
    try:
        descriptor = os.memfd_create("afd", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise ConnectorError(f"no shared memory could be made: {error.strerror}") from error
    try:
        os.ftruncate(descriptor, Plan(shape).total)
        # Neither side can be killed by the other's cutting the memory short under it.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        give(data, descriptor, limit)
        answer = recv_message(data, limit)
        if answer.get("say") != "mapped":
            raise FrameError(f"shared memory is answered with 'mapped', found {quoted(answer.get('say'))}.")
        data.settimeout(None)
        return Segment(descriptor, shape)
    except (OSError, RuntimeError) as error:
        raise ConnectorError(f"the shared memory could not be handed over: {error}; {_ELSEWHERE}") from error
    finally:
        os.close(descriptor)


def accept(data: socket.socket, shape: Shape) -> Segment:
    """On the FFN rank: takes the memory of the attention rank behind `data`; ConnectorError when that fails."""
    limit = Deadline(HELLO_S)
    descriptor = take(data, limit, _ELSEWHERE)
    try:
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise FrameError("its shared memory is not sealed.")
        found, expected = os.fstat(descriptor).st_size, Plan(shape).total
        if found != expected:
            raise FrameError(f"its shared memory has {found} bytes, expected {expected}.")
        segment = Segment(descriptor, shape)
    except (OSError, RuntimeError) as error:
        raise ConnectorError(f"its shared memory could not be mapped: {error}") from error
    finally:
        os.close(descriptor)
    send_message(data, {"say": "mapped"}, limit)
    data.settimeout(None)
    return segment
