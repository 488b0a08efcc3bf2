"""Attacks of callers that keep no rule: whatever comes before a rank is served."""

from __future__ import annotations

import random
import socket
import struct
import time
from contextlib import ExitStack

from afd_connectors import Deadline, Layout
from afd_connectors.handshake import Identity, hello_of, proof_of, recv_message
from fuzz.victim import FACTS, PATIENCE_S, SECRET, Attack, Victim, framed, leave, odd_message

LONE = {"say": "attach", "facts": FACTS.to_wire(), "rank": 1, "nonce": "0" * 32, "token": "t", "proof": "p"}


def random_bytes(rng: random.Random, victim: Victim) -> None:
    with victim.call() as sock:
        start = rng.choice((b"", b"AFDH", b"AFDC", b"AFDX", framed(b"[" * 60000), b"GET / HTTP/1.1\r\n\r\n"))
        sock.sendall(start + rng.randbytes(rng.choice((0, 1, 7, 8, 24, 100, 5000, 100_000))))
        leave(rng, sock)


def mutated_handshake(rng: random.Random, victim: Victim) -> None:
    """As far through the handshake as the FFN rank goes along, with a right proof where nothing else is wrong."""
    rank = rng.choice((victim.rank, victim.rank, -1, 99))
    me = Identity(Layout("attention", victim.rank, FACTS.num_attention, 1), FACTS, rng.choice((SECRET, SECRET, None)))
    nonce, token = rng.randbytes(16).hex(), rng.randbytes(16).hex()
    with victim.call() as sock:
        sock.sendall(odd_message(rng, hello_of(me, nonce, token) | {"rank": rank}))
        theirs = str(recv_message(sock, Deadline(PATIENCE_S)).get("nonce"))
        proof: dict[str, object] = {"say": "proof", "proof": proof_of(me.secret, "attention", nonce, theirs, token)}
        refusal: dict[str, object] = {"say": "refuse", "reason": rng.choice(("no", "x\n" * 900))}
        sock.sendall(odd_message(rng, rng.choice((proof, proof, refusal))))
        recv_message(sock, Deadline(PATIENCE_S))
        with victim.call() as data:
            joins = {"say": "attach", "token": token, "proof": proof_of(me.secret, "data", nonce, theirs, token)}
            for _ in range(rng.choice((1, 2))):
                data.sendall(odd_message(rng, dict(joins)))
            leave(rng, data)


def lone_message(rng: random.Random, victim: Victim) -> None:
    with victim.call() as sock:
        sock.sendall(odd_message(rng, dict(LONE)))
        leave(rng, sock)


def half_open(rng: random.Random, victim: Victim) -> None:
    """Many callers at once that say nothing, or half a message, and stay."""
    with ExitStack() as stack:
        for _ in range(rng.choice((1, 20, 80))):
            sock = stack.enter_context(victim.call())
            sock.sendall(rng.choice((b"", b"AFDH", framed(bytes(100))[:-1])))
        time.sleep(rng.uniform(0, PATIENCE_S))


def slow_writer(rng: random.Random, victim: Victim) -> None:
    """A message of the greatest length in small pieces."""
    wire = framed(bytes(64 * 1024))
    with victim.call() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end, at = time.monotonic() + PATIENCE_S, 0
        while time.monotonic() < end:
            at += sock.send(wire[at : at + rng.choice((1, 3))])
            time.sleep(rng.choice((0, 0, 0, 0.01)))


def flood(rng: random.Random, victim: Victim) -> None:
    """Hundreds of connections one after another, each reset at once."""
    for _ in range(rng.choice((60, 300))):
        sock = victim.call()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    time.sleep(rng.uniform(0, PATIENCE_S))


STRANGERS: tuple[Attack, ...] = (
    *(random_bytes, lone_message) * 20,
    *(mutated_handshake,) * 40,
    *(half_open, slow_writer, flood),
)
