"""Feeds the parsers of all that arrives with bytes that atheris finds by coverage.

`python tools/fuzz_parsers.py -max_total_time=60`; needs `pip install atheris`, which has wheels for Linux on x86-64.
Anything but a ConnectorError ends the run.
"""

from __future__ import annotations

import socket
import sys

import atheris

with atheris.instrument_imports(include=["afd_connectors"]):
    from afd_connectors import ConnectorError, Deadline, Event, Facts, Layout, Step, control
    from afd_connectors.handshake import Identity, answer_attention, greet_ffn, recv_message
    from afd_connectors.transports.paired import head

FACTS = Facts("0", "none", "fuzz", "float32", 8, 1, 0, "ffn", 1, (), 1, 1)
SIDES = {role: Identity(Layout(role, 0, 1, 1), FACTS, "a secret") for role in ("attention", "ffn")}


def step(data: bytes) -> None:
    assert Step.decode(data).encode()[:7] == data[:7]


def stream(data: bytes) -> None:
    for frame in control.Parser().feed(data):
        if frame.kind is control.Kind.STEP:
            Step.decode(frame.body)


def event(data: bytes) -> None:
    assert Event.decode(data, 1.0).told(2.0)


def data_head(data: bytes) -> None:
    if len(data) == head.HEAD_BYTES:
        assert head.decode(data).encode() == data


def handshake(data: bytes, role: str) -> None:
    """Messages of a peer that knows no secret: the side must not agree."""
    bodies = data.split(b"\xff")[:3]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"".join(b"AFDH" + len(body).to_bytes(4, "little") + body for body in bodies))
        theirs.shutdown(socket.SHUT_WR)
        deadline = Deadline(5)
        if role == "ffn":
            assert answer_attention(ours, SIDES["ffn"], recv_message(ours, deadline), deadline)[1] is not None
        else:
            greet_ffn(ours, SIDES["attention"], 0, deadline)
            raise AssertionError("attention agreed with a peer that does not know the secret")


def one(data: bytes) -> None:
    """The first byte chooses the parser."""
    chosen, rest = data[:1], data[1:]
    parsers = (step, stream, event, data_head, lambda d: handshake(d, "ffn"), lambda d: handshake(d, "attention"))
    said = ""
    try:
        parsers[(chosen or b"\0")[0] % len(parsers)](rest)
    except ConnectorError as error:
        said = str(error)
    assert said.isprintable()


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
