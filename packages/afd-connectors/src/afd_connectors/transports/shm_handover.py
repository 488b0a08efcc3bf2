"""How the memory gets from the attention rank, which makes it, to the FFN rank: without a name that could be left.

The descriptor of anonymous memory is handed over a socket of the abstract namespace, whose name is told on the agreed
data connection. Both vanish with the processes that hold them, also after kill -9.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import socket
import struct

from afd_connectors.deadline import Deadline
from afd_connectors.errors import ConnectorError, FrameError, quoted
from afd_connectors.handshake import HELLO_S, recv_message, send_message
from afd_connectors.shape import Shape
from afd_connectors.transports.shm_plan import Plan
from afd_connectors.transports.shm_segment import Segment

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_NAME = re.compile("afd-[0-9a-f]{32}")
_OWNER = struct.Struct("3i")  # pid, uid, gid of SO_PEERCRED
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
        _hand_over(data, descriptor, limit)
        return Segment(descriptor, shape)
    except (OSError, RuntimeError) as error:
        raise ConnectorError(f"the shared memory could not be handed over: {error}; {_ELSEWHERE}") from error
    finally:
        os.close(descriptor)


def _hand_over(data: socket.socket, descriptor: int, limit: Deadline) -> None:
    name = "afd-" + secrets.token_hex(16)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind("\0" + name)
        door.listen(8)
        proof = secrets.token_hex(16)
        send_message(data, {"say": "memory", "name": name, "proof": proof}, limit)
        while True:  # every process of this host can knock; only the agreed peer knows the proof
            door.settimeout(max(limit.remaining(), 0.001))
            guest, _ = door.accept()
            with guest:
                if _proven(guest, proof, limit):
                    socket.send_fds(guest, [b"!"], [descriptor])
                    break
    answer = recv_message(data, limit)
    if answer.get("say") != "mapped":
        raise FrameError(f"shared memory is answered with 'mapped', found {quoted(answer.get('say'))}.")
    data.settimeout(None)


def _proven(guest: socket.socket, proof: str, limit: Deadline) -> bool:
    _, owner, _ = _OWNER.unpack(guest.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _OWNER.size))
    if owner != os.geteuid():
        return False
    guest.settimeout(max(min(limit.remaining(), 1.0), 0.001))
    with contextlib.suppress(OSError):  # hung up or silent: no proof
        return secrets.compare_digest(guest.recv(len(proof), socket.MSG_WAITALL), proof.encode())
    return False


def accept(data: socket.socket, shape: Shape) -> Segment:
    """On the FFN rank: takes the memory of the attention rank behind `data`; ConnectorError when that fails."""
    limit = Deadline(HELLO_S)
    message = recv_message(data, limit)
    name, proof = message.get("name"), message.get("proof")
    if message.get("say") != "memory" or not isinstance(name, str) or not isinstance(proof, str):
        raise FrameError(f"an attention rank on shared memory names it first, found {quoted(message.get('say'))}.")
    try:
        descriptor = _fetch(name, proof.encode(), limit)
    except (OSError, ValueError) as error:
        raise ConnectorError(f"its shared memory could not be reached: {error}; {_ELSEWHERE}") from error
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


def _fetch(name: str, proof: bytes, limit: Deadline) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        if not _NAME.fullmatch(name):  # the peer chooses the name; nobody else's door is knocked at
            raise OSError("its name is not one of ours")
        sock.settimeout(max(limit.remaining(), 0.001))
        sock.connect("\0" + name)
        sock.sendall(proof)
        sock.settimeout(max(limit.remaining(), 0.001))
        _, descriptors, _, _ = socket.recv_fds(sock, 1, 1)
    if len(descriptors) != 1:
        raise OSError("no descriptor came")
    return descriptors[0]
