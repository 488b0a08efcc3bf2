"""Attacks from within: attention ranks that know the secret and break the rules of steps and requests."""

from __future__ import annotations

import random
import secrets
import socket
import time
from contextlib import ExitStack, suppress

from afd_connectors import Event, Mode, Phase, Step, control
from afd_connectors.control import Kind
from afd_connectors.step import MAX_TOKENS
from afd_connectors.transports.paired.head import REQUEST, Head
from afd_connectors.transports.shm_handover import offer
from fuzz.victim import PATIENCE_S, SHAPE, Attack, Victim, leave, mutated, odd_message


def an_event(rng: random.Random) -> bytes:
    now = time.monotonic()
    event = Event(rng.choice([*Phase]), now, rng.randrange(2**63), rng.randrange(-1, 2**31), rng.randrange(-1, 2))
    return control.encode(Kind.HEARTBEAT, event.encode(now))


def announcement(rng: random.Random, seq: int) -> tuple[bytes, tuple[int, ...]]:
    tokens = tuple(rng.choice((0, 1, SHAPE.tokens, rng.randrange(65))) for _ in range(rng.choice((1, 2))))
    if rng.random() < 0.01:
        tokens = (rng.choice((SHAPE.tokens + 1, MAX_TOKENS)),)
    return control.encode(Kind.STEP, Step(seq, rng.choice([*Mode]), tokens).encode()), tokens


def mutated_control(rng: random.Random, victim: Victim) -> None:
    """Heartbeats, steps and goodbyes, good ones and changed ones, cut anywhere."""
    with ExitStack() as stack:
        pair = victim.agreed(stack)
        count = rng.randrange(20)
        frames = [an_event(rng) if rng.random() < 0.6 else announcement(rng, seq)[0] for seq in range(count)]
        frames.append(rng.choice((b"", control.encode(Kind.BYE, rng.randbytes(rng.choice((0, 256)))), b"AFDC")))
        wire = mutated(rng, b"".join(frames))
        while wire:
            size = rng.choice((1, 8, 30, len(wire)))
            pair.control.sendall(wire[:size])
            wire = wire[size:]
        leave(rng, rng.choice((pair.control, pair.data)))


def a_request(rng: random.Random, seq: int, layer: int, stage: int, rows: int) -> bytes:
    code = rng.choice((0, 0, 1, 2, 3)) if rng.random() < 0.99 else rng.randrange(256)
    head = [REQUEST, seq, layer, stage, rows, code]
    if rng.random() < 0.01:
        head[rng.randrange(6)] = rng.choice((0, 1, 2, 7, 255))
    logits = rows * SHAPE.router * (4 if code == 1 else 2) if code else 0
    return Head(*head).encode() + rng.randbytes(8) * (min(rows * SHAPE.row_bytes + logits, 2**17) // 8)


def mixed_steps(rng: random.Random, victim: Victim) -> None:
    """Steps and requests that are nearly right, the two connections at odds, requests cut by announcements."""
    with ExitStack() as stack:
        pair = victim.agreed(stack)
        seq, late = 0, b""
        for _ in range(rng.randrange(1, 12)):
            seq += rng.choice((1, 1, 1, 2)) if rng.random() < 0.98 else 0
            frame, tokens = announcement(rng, seq)
            held = rng.random() < 0.2
            if not held:
                pair.control.sendall(frame)
            pair.data.sendall(late)
            late = b""
            for layer in range(rng.choice((0, 1, SHAPE.layers))):
                for stage, rows in enumerate(tokens):
                    request = a_request(rng, seq, layer, stage, rows) if rows else b""
                    cut = rng.randrange(len(request) + 1) if rng.random() < 0.04 else len(request)
                    pair.data.sendall(request[:cut])
                    late = request[cut:]
                    if late and rng.random() < 0.7:
                        break
                    if rng.random() < 0.95:
                        answered(pair.data, rows)
                if late:
                    time.sleep(0.005)
                    break
            if held:
                pair.control.sendall(frame)
        leave(rng, rng.choice((pair.control, pair.data)))


def answered(data: socket.socket, rows: int) -> None:
    """Reads one answer if it comes soon."""
    data.settimeout(0.01)
    with suppress(TimeoutError):
        data.recv(24 + min(rows, SHAPE.tokens) * SHAPE.row_bytes, socket.MSG_WAITALL)
    data.settimeout(PATIENCE_S)


def mutated_data(rng: random.Random, victim: Victim) -> None:
    with ExitStack() as stack:
        pair = victim.agreed(stack)
        pair.control.sendall(control.encode(Kind.STEP, Step(1, Mode.EAGER, (1, 2)).encode()))
        wire = b"".join(a_request(rng, 1, layer, stage, 1 + stage) for layer in range(3) for stage in (0, 1))
        pair.data.sendall(mutated(rng, wire))
        answered(pair.data, 1)
        leave(rng, rng.choice((pair.control, pair.data)))


def control_flood(rng: random.Random, victim: Victim) -> None:
    """Valid heartbeats as fast as they go."""
    with ExitStack() as stack:
        pair = victim.agreed(stack)
        wire, end = an_event(rng) * 2000, time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            pair.control.sendall(wire)


def unread_answers(_rng: random.Random, victim: Victim) -> None:
    """Valid steps and requests whose answers are never read."""
    with ExitStack() as stack:
        pair = victim.agreed(stack)
        rows, end, seq = SHAPE.tokens, time.monotonic() + 4 * PATIENCE_S, 0
        while time.monotonic() < end:
            seq += 1
            pair.control.sendall(control.encode(Kind.STEP, Step(seq, Mode.EAGER, (rows,)).encode()))
            for layer in range(SHAPE.layers):
                pair.data.sendall(Head(REQUEST, seq, layer, 0, rows, 0).encode() + bytes(rows * SHAPE.row_bytes))
                time.sleep(0.003)


def slow_reader(rng: random.Random, victim: Victim) -> None:
    """Answers are read a little at a time."""
    with ExitStack() as stack:
        pair = victim.agreed(stack)
        pair.data.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        seq, end = 0, time.monotonic() + 2 * PATIENCE_S
        while time.monotonic() < end:
            seq += 1
            pair.control.sendall(control.encode(Kind.STEP, Step(seq, Mode.EAGER, (SHAPE.tokens,)).encode()))
            pair.data.sendall(a_request(rng, seq, 0, 0, SHAPE.tokens))
            left = 24 + SHAPE.hidden_bytes
            while left > 0 and time.monotonic() < end:
                left -= len(pair.data.recv(min(left, rng.choice((1024, 4096))))) or left
                time.sleep(0.001)


def mutated_handover(rng: random.Random, victim: Victim) -> None:
    """The message that tells where the shared memory is, leading nowhere or to the wrong thing."""
    with ExitStack() as stack:
        pair = victim.dialled(stack)
        name = secrets.token_hex(8)
        door = stack.enter_context(socket.socket(socket.AF_UNIX))
        door.bind("\0" + name)
        door.listen(1)
        door.settimeout(PATIENCE_S)
        pair.data.sendall(odd_message(rng, {"say": "memory", "name": name, "proof": "p"}))
        guest = stack.enter_context(door.accept()[0])
        way = rng.randrange(3)
        if way == 0:
            socket.send_fds(guest, [b"!"], [pair.data.fileno()] * rng.choice((1, 3)))
        elif way == 1:
            guest.sendall(b"!")
        guest.close()
        leave(rng, pair.data)


def shared_memory(rng: random.Random, victim: Victim) -> None:
    """Requests in shared memory that are nearly right, and heads and marks that are not."""
    with ExitStack() as stack:
        pair = victim.dialled(stack)
        segment = offer(pair.data, SHAPE)
        for seq in range(1, rng.randrange(2, 8)):
            frame, tokens = announcement(rng, seq)
            pair.control.sendall(frame)
            for layer in range(SHAPE.layers):
                stage = rng.randrange(len(tokens))
                code = rng.choice((0, 0, 1, 2, 3, 99 if rng.random() < 0.1 else 0))
                head = Head(REQUEST, seq, layer, stage, tokens[stage], code).encode()
                lane = segment.requests[stage]
                if rng.random() < 0.05:
                    head = mutated(rng, head)[:24].ljust(24)
                    lane.count = rng.choice((lane.count, 0, lane.count + 1, 2**63))
                lane.publish(head)
                pair.data.sendall(b"!")
                time.sleep(0.003)
        leave(rng, rng.choice((pair.control, pair.data)))


_RARE: tuple[Attack, ...] = (control_flood, unread_answers, slow_reader)
PEERS: dict[str, tuple[Attack, ...]] = {
    "tcp": (*(mutated_control, mutated_data, mixed_steps) * 30, *_RARE),
    "shm": (*(mutated_control, mutated_handover, shared_memory) * 30, control_flood),
}
