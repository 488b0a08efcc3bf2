"""The handshake over a socket pair: no torch, no transport, any bytes."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_connectors import ConnectorError, Deadline, Facts, HandshakeRefused, Layout
from afd_connectors.dial import dial
from afd_connectors.handshake import (
    MAX_MESSAGE,
    Identity,
    Session,
    answer_attention,
    greet_ffn,
    hello_of,
    recv_message,
    send_message,
)
from afd_connectors.listener import Arrival, Listener

FACTS = Facts("0.1.0", "0.30.0", "digest", "bfloat16", 128, 27, 0, "ffn", 1, (1, 2), 2, 1)


def identity(role: str, rank: int = 0, secret: str | None = None, facts: Facts = FACTS) -> Identity:
    return Identity(Layout(role, rank, facts.num_attention, facts.num_ffn), facts, secret)


def shake(attention: Identity, ffn: Identity) -> tuple[Session | ConnectorError, str | None]:
    """What both sides make of each other: attention's session or error, FFN's reason to refuse."""
    ours, theirs = socket.socketpair()
    reasons: list[str | None] = []

    def answer() -> None:
        deadline = Deadline(5)
        _, reason = answer_attention(theirs, ffn, recv_message(theirs, deadline), deadline)
        reasons.append(reason)
        verdict = {"say": "verdict", "accepted": reason is None, "final": True, "reason": reason or ""}
        send_message(theirs, verdict, deadline)

    thread = threading.Thread(target=answer)
    thread.start()
    found: Session | ConnectorError
    try:
        found = greet_ffn(ours, attention, ffn.layout.rank, Deadline(5))
    except ConnectorError as error:
        found = error
    thread.join(10)
    ours.close()
    theirs.close()
    return found, reasons[0]


@pytest.mark.parametrize("secret", [None, "s" * 40])
def test_equal_sides_agree(secret: str | None) -> None:
    found, reason = shake(identity("attention", 1, secret), identity("ffn", 0, secret))
    assert isinstance(found, Session)
    assert reason is None


def test_both_sides_name_field_and_values() -> None:
    found, reason = shake(identity("attention"), identity("ffn", facts=replace(FACTS, hidden=256)))
    assert isinstance(found, HandshakeRefused)
    for text in (str(found), reason or ""):
        assert "disagree on hidden: attention has 128, FFN has 256" in text


def test_another_protocol() -> None:
    found, reason = shake(identity("attention"), identity("ffn", facts=replace(FACTS, protocol=9)))
    assert isinstance(found, HandshakeRefused)
    assert "protocol" in str(found)
    assert "protocol" in (reason or "")


@pytest.mark.parametrize(
    ("attention", "ffn", "sentence"),
    [
        ("aaa", "bbb", "were given different secrets"),
        ("aaa", None, "a secret is set on attention rank 0 but not on FFN rank 0"),
        (None, "bbb", "a secret is set on FFN rank 0 but not on attention rank 0"),
    ],
)
def test_secrets(attention: str | None, ffn: str | None, sentence: str) -> None:
    found, reason = shake(identity("attention", secret=attention), identity("ffn", secret=ffn))
    assert isinstance(found, HandshakeRefused)
    for text in (str(found), reason or ""):
        assert sentence in text
        assert "aaa" not in text
        assert "bbb" not in text


def test_proof_cannot_be_reflected() -> None:
    """A caller without the secret that hands back the FFN rank's own proof is refused."""
    ours, theirs = socket.socketpair()
    ffn, deadline = identity("ffn", secret="s"), Deadline(5)
    found: list[str | None] = []
    thread = threading.Thread(
        target=lambda: found.append(answer_attention(theirs, ffn, recv_message(theirs, deadline), deadline)[1])
    )
    thread.start()
    send_message(ours, hello_of(identity("attention", secret="x"), "0" * 32, "t"), deadline)
    hello = recv_message(ours, deadline)
    send_message(ours, {"say": "proof", "proof": hello["proof"]}, deadline)
    thread.join(10)
    assert found == [found[0]]
    assert "different secrets" in (found[0] or "")
    ours.close()
    theirs.close()


def test_foreign_rank_is_refused() -> None:
    facts = replace(FACTS, num_attention=4, num_ffn=2)
    found, reason = shake(identity("attention", 3, facts=facts), identity("ffn", 0, facts=facts))
    assert isinstance(found, HandshakeRefused)
    assert "serves attention ranks [0, 1], found rank 3" in (reason or "")


@settings(max_examples=60)
@given(st.binary(max_size=200), st.booleans())
def test_no_bytes_break_a_message(body: bytes, framed: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"AFDH" + len(body).to_bytes(4, "little") + body if framed else body)
        ours.shutdown(socket.SHUT_WR)
        found: object = {}
        with contextlib.suppress(ConnectorError):
            found = recv_message(theirs, Deadline(2))
        assert isinstance(found, dict)


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from(["say", "role", "rank", "nonce", "token", "proof", "facts", "secured"]),
        st.none() | st.integers() | st.text(max_size=9) | st.sampled_from(["hello", "attention"]),
    )
)
def test_no_hello_breaks_the_ffn(hello: dict[str, object]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectorError):
            answer_attention(theirs, identity("ffn"), hello, Deadline(2))


def test_oversize_is_refused_before_it_is_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"AFDH" + (MAX_MESSAGE + 1).to_bytes(4, "little"))
        with pytest.raises(ConnectorError, match="found b'AFDH' and 65537"):
            recv_message(theirs, Deadline(2))


def test_drip_does_not_outlive_the_deadline() -> None:
    ours, theirs = socket.socketpair()
    stop = threading.Event()

    def drip() -> None:
        for byte in b"AFDH\x00\x10\x00\x00" + bytes(100):
            if stop.wait(0.05):
                return
            ours.sendall(bytes([byte]))

    thread = threading.Thread(target=drip)
    thread.start()
    start = time.monotonic()
    with pytest.raises(ConnectorError):
        recv_message(theirs, Deadline(0.4))
    assert time.monotonic() - start < 2
    stop.set()
    thread.join(5)
    ours.close()
    theirs.close()


def test_listener_brings_both_connections_and_closes_clean() -> None:
    arrivals: list[Arrival] = []
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = ("127.0.0.1", int(probe.getsockname()[1]))

    def welcome(arrival: Arrival) -> str | None:
        arrivals.append(arrival)
        return None

    listener = Listener(address, identity("ffn"), lambda rank: "busy" if rank == 1 else None, welcome)
    dialled = dial(address, identity("attention"), 0, Deadline(5))
    end = time.monotonic() + 5
    while not arrivals and time.monotonic() < end:
        time.sleep(0.01)
    assert arrivals[0].rank == 0
    dialled.data.sendall(b"rows")
    assert arrivals[0].data.recv(4) == b"rows"
    with pytest.raises(HandshakeRefused, match="busy") as refused:
        dial(address, identity("attention", 1), 0, Deadline(5))
    assert refused.value.final is False
    listener.close()
    listener.close()
    with pytest.raises(ConnectorError, match="does not answer"):
        dial(address, identity("attention"), 0, Deadline(1))
    for sock in (dialled.data, dialled.control, arrivals[0].data, arrivals[0].control):
        sock.close()


def test_open_bind_without_a_secret_warns(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "afd.connectors")
    for secret, warns in ((None, True), ("s", False)):
        caplog.clear()
        with socket.socket() as probe:
            probe.bind(("0.0.0.0", 0))
            address = ("0.0.0.0", int(probe.getsockname()[1]))
        Listener(address, identity("ffn", secret=secret), lambda _: None, lambda _: None).close()
        assert ("without a secret" in caplog.text) is warns
