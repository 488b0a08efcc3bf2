"""How a descriptor gets from one process of a host to another that it has agreed with: without a name to be left.

It is handed over a socket of the abstract namespace, whose name is told on the agreed data connection. Both vanish with
the processes that hold them, also after kill -9.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import struct

from afd_connectors.deadline import Deadline
from afd_connectors.errors import ConnectorError, FrameError, quoted
from afd_connectors.handshake import recv_message, send_message

_NAME = re.compile("afd-[0-9a-f]{32}")
_OWNER = struct.Struct("3i")  # pid, uid, gid of SO_PEERCRED


def give(data: socket.socket, descriptor: int, limit: Deadline) -> None:
    """Hands a descriptor to whoever is at the other end of `data`; OSError or ConnectorError when it is not taken."""
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
                    return


def take(data: socket.socket, limit: Deadline, elsewhere: str) -> int:
    """The descriptor that the other end gives; ConnectorError, which ends with `elsewhere`, when it cannot be got."""
    message = recv_message(data, limit)
    name, proof = message.get("name"), message.get("proof")
    if message.get("say") != "memory" or not isinstance(name, str) or not isinstance(proof, str):
        raise FrameError(f"a rank on shared memory names it first, found {quoted(message.get('say'))}.")
    try:
        return _fetch(name, proof.encode(), limit)
    except (OSError, ValueError) as error:
        raise ConnectorError(f"its shared memory could not be reached: {error}; {elsewhere}") from error


def _proven(guest: socket.socket, proof: str, limit: Deadline) -> bool:
    _, owner, _ = _OWNER.unpack(guest.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _OWNER.size))
    if owner != os.geteuid():
        return False
    guest.settimeout(max(min(limit.remaining(), 1.0), 0.001))
    with contextlib.suppress(OSError):  # hung up or silent: no proof
        return secrets.compare_digest(guest.recv(len(proof), socket.MSG_WAITALL), proof.encode())
    return False


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
