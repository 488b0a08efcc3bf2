"""The FFN rank that is attacked, and how what it expects to read is damaged."""

from __future__ import annotations

import json
import random
import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass

from afd_connectors import ConnectorError, Deadline, Facts, Layout, Shape
from afd_connectors.dial import Dialled, dial
from afd_connectors.handshake import Identity
from afd_connectors.transports.shm_handover import offer

SHAPE = Shape(64, 256, "bfloat16", 8, stages=2, router=4)
FACTS = Facts("0", "none", "fuzz", SHAPE.dtype, SHAPE.hidden, SHAPE.layers, SHAPE.router, "attention", 2, (), 4, 1)
SECRET = "known to those who attack from within"
PATIENCE_S = 0.5
NUMBERS = (True, -1, 0, 2**31, 2**32, 2**64, 10**300, 1.5)
ODD = (*NUMBERS, None, "", "x", "\ud800", "ffn", "attention", "hello", [], {}, [[]])


@dataclass(frozen=True, slots=True)
class Victim:
    """Where the FFN rank listens, and the attention rank that an attack from within may be."""

    connector: str
    port: int
    rank: int

    def call(self, buffer: int = 0) -> socket.socket:
        """A bare connection."""
        sock = socket.socket()
        if buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        sock.settimeout(PATIENCE_S)
        sock.connect(("127.0.0.1", self.port))
        return sock

    def dialled(self, stack: ExitStack) -> Dialled:
        """Both connections after an honest handshake, before anything is said on them."""
        me = Identity(Layout("attention", self.rank, FACTS.num_attention, 1), FACTS, SECRET)
        end = time.monotonic() + 10 * PATIENCE_S
        while True:
            try:
                pair = dial(("127.0.0.1", self.port), me, 0, Deadline(3))
                break
            except ConnectorError:  # its last connection is not gone yet, or the listener is full
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
        for sock in (pair.control, pair.data):
            sock.settimeout(PATIENCE_S)
            stack.enter_context(closing(sock))
        return pair

    def agreed(self, stack: ExitStack) -> Dialled:
        """Both connections of a rank that is served."""
        pair = self.dialled(stack)
        if self.connector == "shm":
            offer(pair.data, SHAPE)
        return pair


Attack = Callable[[random.Random, Victim], None]


def mutated(rng: random.Random, data: bytes) -> bytes:
    """The bytes with some changed, lost, doubled or added."""
    found = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 8))):
        at = rng.randrange(len(found) + 1)
        change = rng.randrange(5)
        if change == 0:
            found[at : at + 1] = rng.randbytes(1)
        elif change == 1:
            found[at : at + 4] = rng.choice((b"\xff" * 4, bytes(4), b"\x00\x00\x00\x80", b"\x01\x00\x00\x00"))
        elif change == 2:
            del found[at : at + rng.choice((1, 4, 4096))]
        elif change == 3:
            found[at:at] = found[at : at + rng.choice((1, 24, 4096))]
        else:
            found[at:at] = rng.randbytes(rng.choice((1, 24, 300)))
    return bytes(found)


def framed(body: bytes) -> bytes:
    """A handshake message with any body."""
    return b"AFDH" + struct.pack("<I", len(body)) + body


def odd_message(rng: random.Random, message: dict[str, object]) -> bytes:
    """A handshake message with some values, or bytes, that do not belong there."""
    for key in rng.sample([*message], min(len(message), rng.choice((0, 0, 1, 2)))):
        message[key] = rng.choice((*ODD, "x" * 3000, [0] * 900, {"deep": [[[[{}]]]]}))
    facts = message.get("facts")
    if isinstance(facts, dict) and facts and rng.random() < 0.3:
        message["facts"] = facts | {rng.choice([*facts]): rng.choice(ODD)}
    wire = framed(json.dumps(message).encode())
    return mutated(rng, wire) if rng.random() < 0.4 else wire


def leave(rng: random.Random, sock: socket.socket) -> None:
    """Ends a connection politely, by halves, or with a reset."""
    way = rng.randrange(3)
    if way == 0:
        sock.shutdown(socket.SHUT_WR)
        sock.settimeout(0.02)
        with suppress(TimeoutError):
            sock.recv(4096)
    elif way == 1:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
