"""How a descriptor gets from one process of a host to another that it has agreed with: without a name to be left.

It is handed over a socket of the abstract namespace, whose name is told on the agreed data connection. Both vanish with
the processes that hold them, also after kill -9.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import socket
import struct

from afd_connectors.deadline import Deadline
from afd_connectors.errors import ConnectorError, FrameError, HandshakeRefused, one_line, quoted
from afd_connectors.handshake import Message, recv_message, send_message

_NAME = re.compile("afd-[0-9a-f]{32}")
_OWNER = struct.Struct("3i")  # pid, uid, gid of SO_PEERCRED
_REFUSE, _UNABLE = "refuse", "unable"  # for good; for now


def give(data: socket.socket, descriptor: int, limit: Deadline) -> None:
    """Hands a descriptor to whoever is at the other end of `data`; OSError or ConnectorError when it is not taken.

    HandshakeRefused when the other end says that it cannot be taken from where it is.
    """
    name = "afd-" + secrets.token_hex(16)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind("\0" + name)
        door.listen(8)
        proof = secrets.token_hex(16)
        send_message(data, {"say": "memory", "name": name, "proof": proof}, limit)
        while True:  # every process of this host can knock; only the agreed peer knows the proof
            _await_knock(door, data, limit)
            door.settimeout(max(limit.remaining(), 0.001))
            guest, _ = door.accept()
            with guest:
                if _proven(guest, proof, limit):
                    socket.send_fds(guest, [b"!"], [descriptor])
                    return


def take(data: socket.socket, limit: Deadline, elsewhere: str) -> int:
    """The descriptor that the other end gives; ConnectorError, which ends with `elsewhere`, when it cannot be got."""
    message = recv_message(data, limit)
    check_declined(message)
    name, proof = message.get("name"), message.get("proof")
    if message.get("say") != "memory" or not isinstance(name, str) or not isinstance(proof, str):
        raise FrameError(f"a rank on shared memory names it first, found {quoted(message.get('say'))}.")
    try:
        return _fetch(name, proof.encode(), limit)
    except (OSError, ValueError) as error:
        told = f"its shared memory could not be reached: {error}; {elsewhere}"
        if isinstance(error, ConnectionRefusedError):  # there is no such door on this host, now or later
            refuse(data, told, limit)
        raise ConnectorError(told) from error


def decline(data: socket.socket, error: ConnectorError, limit: Deadline) -> None:
    """Tells the other end of `data`, which waits, why it gets no memory just now; a lost connection is no error."""
    _say(data, _UNABLE, error.message, limit)


def refuse(data: socket.socket, reason: str, limit: Deadline) -> None:
    """As `decline`, for good."""
    _say(data, _REFUSE, reason, limit)


def check_declined(message: Message) -> None:
    """HandshakeRefused or ConnectorError for what `refuse` or `decline` said at the other end."""
    if message.get("say") == _REFUSE:
        raise HandshakeRefused(f"the other side refuses: {quoted(message.get('reason'), 400)}.")
    if message.get("say") == _UNABLE:
        raise ConnectorError(f"the other side has no memory for this one: {quoted(message.get('reason'), 400)}.")


def _say(data: socket.socket, word: str, reason: str, limit: Deadline) -> None:
    with contextlib.suppress(ConnectorError):
        send_message(data, {"say": word, "reason": one_line(reason)[:400]}, limit)


def _await_knock(door: socket.socket, data: socket.socket, limit: Deadline) -> None:
    """Returns once somebody is at the door; raises as `give` does when the agreed peer will not come."""
    waiting = select.poll()
    for sock in (door, data):
        waiting.register(sock, select.POLLIN)
    ready = {fd for fd, _ in waiting.poll(max(1, round(1000 * limit.remaining())))}
    if door.fileno() in ready:
        return
    if not ready:
        raise TimeoutError("timed out")
    if not data.recv(1, socket.MSG_PEEK):
        raise ConnectionResetError("the other side ended the connection and did not fetch it")
    message = recv_message(data, limit)
    check_declined(message)
    raise FrameError(f"memory is fetched before anything else is said, found {quoted(message.get('say'))}.")


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
