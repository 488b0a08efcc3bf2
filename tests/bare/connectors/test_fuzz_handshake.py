"""Handshakes of either side that went wrong in any way: one sentence, in time, and never an agreement."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from afd_connectors import ConnectorError, Deadline, Facts, Layout
from afd_connectors.handshake import Identity, answer_attention, greet_ffn, hello_of, proof_of, recv_message

FACTS = Facts("0.1.0", "0.30.0", "digest", "bfloat16", 128, 27, 0, "ffn", 1, (1, 2), 1, 1)
SECRET = "not told to the other side"
LIMIT_S = 3.0
Message = dict[str, object]

texts = st.text(max_size=20) | st.sampled_from(["\ud800", "x\ny\x1b[2J", "x" * 3000, "hello", "ffn", "attention"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(2**31, 2**70) | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def identity(role: str, secret: str | None) -> Identity:
    return Identity(Layout(role, 0, 1, 1), FACTS, secret)


def changed(message: Message) -> st.SearchStrategy[Message]:
    """The message with some values replaced or keys lost, its facts among them."""
    keys = st.sampled_from([*message])
    found = st.dictionaries(keys, values, max_size=3).map(lambda other: message | other)
    facts = message.get("facts")
    if isinstance(facts, dict):
        odd = st.dictionaries(st.sampled_from([*facts]), values, max_size=2)
        found |= odd.map(lambda other: message | {"facts": facts | other})
    lost = st.sets(keys, max_size=2)
    return st.tuples(found, lost).map(lambda pair: {key: v for key, v in pair[0].items() if key not in pair[1]})


@st.composite
def wire(draw: st.DrawFn, message: Message) -> bytes:
    """A message as bytes, sometimes damaged or cut short."""
    body = json.dumps(draw(changed(message))).encode()
    framed = bytearray(b"AFDH" + len(body).to_bytes(4, "little") + body)
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(framed)))
        framed[at : at + draw(st.integers(0, 9))] = draw(st.binary(max_size=9))
    return bytes(framed)


def told(sent: bytes, listen: Callable[[socket.socket, Deadline], str | None]) -> str:
    """Why a side does not agree with a peer that says these bytes and then nothing more."""
    theirs, ours = socket.socketpair()
    with theirs, ours:
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        deadline = Deadline(LIMIT_S)
        try:
            reason = listen(ours, deadline)
        except ConnectorError as error:
            reason = str(error)
        assert not deadline.passed
    assert reason is not None, "it agreed with a side that does not know the secret"
    assert SECRET not in reason
    return reason


def by_ffn(sock: socket.socket, deadline: Deadline) -> str | None:
    return answer_attention(sock, identity("ffn", SECRET), recv_message(sock, deadline), deadline)[1]


def by_attention(sock: socket.socket, deadline: Deadline) -> str | None:
    greet_ffn(sock, identity("attention", SECRET), 0, deadline)
    return None


hellos = {role: hello_of(identity(role, "a guess"), "0" * 32, "t", "1" * 64) for role in ("attention", "ffn")}
proofs = st.sampled_from(
    [proof_of(secret, "attention", "0" * 32, "1" * 32, "t") for secret in (None, "a guess")] + ["", SECRET[:3]]
)


@settings(max_examples=100)
@given(wire(hellos["attention"]), proofs.flatmap(lambda proof: wire({"say": "proof", "proof": proof})))
def test_no_stranger_is_let_in(hello: bytes, proof: bytes) -> None:
    reason = told(hello + proof, by_ffn)
    assert reason.isprintable()
    assert len(reason) < 700


@settings(max_examples=100)
@given(wire(hellos["ffn"]), wire({"say": "verdict", "accepted": True, "final": False, "reason": ""}))
def test_no_impostor_is_believed(hello: bytes, verdict: bytes) -> None:
    reason = told(hello + verdict, by_attention)
    assert reason.isprintable()
    assert len(reason) < 700


@settings(max_examples=100)
@given(values | st.dictionaries(st.sampled_from([*FACTS.to_wire()]), values).map(lambda odd: FACTS.to_wire() | odd))
def test_no_facts_break_the_reader(wire: object) -> None:
    facts, said = None, "."
    try:
        facts = Facts.from_wire(json.loads(json.dumps(wire)))
    except ConnectorError as error:
        said = str(error)
    assert said.isprintable()
    assert facts is None or facts.to_wire() == wire
