"""The secret keeps strangers out, whatever they replay, reflect, leave out or pretend to be."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from afd_connectors import ConnectorError, Deadline, Facts, FrameError, HandshakeRefused, Layout
from afd_connectors.dial import dial
from afd_connectors.greetings import MAX_GREETINGS
from afd_connectors.handshake import (
    Identity,
    answer_attention,
    greet_ffn,
    hello_of,
    proof_of,
    recv_message,
    send_message,
)
from afd_connectors.listener import Arrival, Listener

FACTS = Facts("0.1.0", "0.30.0", "digest", "bfloat16", 128, 27, 0, "ffn", 1, (1, 2), 1, 1)
SECRET = "correct horse"


def identity(role: str, secret: str | None = SECRET) -> Identity:
    return Identity(Layout(role, 0, 1, 1), FACTS, secret)


class Front:
    """An FFN rank's listener with a secret, and what got past it."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = ("127.0.0.1", int(free.getsockname()[1]))
        self.arrivals: list[Arrival] = []
        self.seated = threading.Event()
        self.listener = Listener(self.address, identity("ffn"), lambda _: None, self.welcome)

    def welcome(self, arrival: Arrival) -> None:
        self.arrivals.append(arrival)
        self.seated.set()

    def call(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=5)

    def close(self) -> None:
        self.listener.close()
        for arrival in self.arrivals:
            arrival.control.close()
            arrival.data.close()


@pytest.fixture
def front(caplog: pytest.LogCaptureFixture) -> Iterator[Front]:
    caplog.set_level(logging.INFO, "afd.connectors")
    with closing(Front()) as front:
        yield front


def said(sock: socket.socket) -> dict[str, object] | None:
    """The next message, None when the other side hangs up instead."""
    try:
        return dict(recv_message(sock, Deadline(5)))
    except ConnectorError:
        return None


def test_replayed_handshake_and_data_connection(front: Front, caplog: pytest.LogCaptureFixture) -> None:
    """What an honest attention rank said, word for word, is worth nothing a second time."""
    spoken: list[dict[str, object]] = []
    with front.call() as control, front.call() as data:
        hello = hello_of(identity("attention"), "1" * 32, "2" * 32)
        send_message(control, hello, Deadline(5))
        theirs = str((said(control) or {})["nonce"])
        spoken = [hello, {"say": "proof", "proof": proof_of(SECRET, "attention", "1" * 32, theirs, "2" * 32)}]
        send_message(control, spoken[1], Deadline(5))
        assert (said(control) or {})["accepted"] is True
        attach = {"say": "attach", "token": "2" * 32, "proof": proof_of(SECRET, "data", "1" * 32, theirs, "2" * 32)}
        send_message(data, attach, Deadline(5))
        assert said(data) == {"say": "ready"}
        assert front.seated.wait(5)
    with front.call() as control, front.call() as data:
        send_message(control, spoken[0], Deadline(5))
        assert (said(control) or {})["nonce"] != theirs
        send_message(control, spoken[1], Deadline(5))
        verdict = said(control) or {}
        assert verdict["accepted"] is False
        assert "different secrets" in str(verdict["reason"])
        send_message(data, attach, Deadline(5))
        assert said(data) is None
    assert len(front.arrivals) == 1


def test_a_wrong_data_proof_leaves_the_channel_to_its_owner(front: Front) -> None:
    """Somebody who saw the token but cannot prove the secret neither joins nor takes the place away."""
    with front.call() as control, front.call() as thief, front.call() as data:
        session = greet_ffn(control, identity("attention"), 0, Deadline(5))
        send_message(thief, {"say": "attach", "token": session.token, "proof": "0" * 64}, Deadline(5))
        assert said(thief) is None
        send_message(data, {"say": "attach", "token": session.token, "proof": session.proof}, Deadline(5))
        assert said(data) == {"say": "ready"}
        assert front.seated.wait(5)


@pytest.mark.parametrize("proof", ["", "0" * 64, "the FFN rank's", None, 7])
def test_an_attention_rank_that_proves_nothing(front: Front, proof: object, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing, something else, or the FFN rank's own proof handed back."""
    with front.call() as sock:
        send_message(sock, hello_of(identity("attention", "no idea"), "0" * 32, "t"), Deadline(5))
        hello = said(sock) or {}
        proof = hello["proof"] if proof == "the FFN rank's" else proof
        send_message(sock, {"say": "proof", "proof": proof}, Deadline(5))
        verdict = said(sock)
        assert verdict is None or (verdict["accepted"] is False and "different secrets" in str(verdict["reason"]))
        assert said(sock) is None
    assert front.arrivals == []
    assert SECRET not in caplog.text


def greeted_by(
    answer: dict[str, object], secret: str | None = SECRET
) -> tuple[ConnectorError, dict[str, object] | None]:
    """What attention makes of an FFN rank that says this, and what it says back; its own hello may be handed back."""
    ours, theirs = socket.socketpair()
    heard: list[dict[str, object] | None] = []

    def impostor() -> None:
        hello = said(theirs) or {}
        send_message(theirs, hello | answer, Deadline(5))
        heard.append(said(theirs))

    thread = threading.Thread(target=impostor)
    thread.start()
    with ours, theirs:
        with pytest.raises(ConnectorError) as raised:
            greet_ffn(ours, identity("attention", secret), 0, Deadline(5))
        ours.shutdown(socket.SHUT_RDWR)
        thread.join(10)
    return raised.value, heard[0]


@pytest.mark.parametrize("proof", ["", "0" * 64])
def test_an_ffn_rank_that_proves_nothing_learns_no_proof(proof: str) -> None:
    """Its hello is attention's own, handed back under the other role."""
    error, heard = greeted_by({"role": "ffn", "proof": proof})
    assert isinstance(error, HandshakeRefused)
    assert heard is not None
    assert heard["say"] == "refuse"
    assert "different secrets" in str(heard["reason"])
    assert SECRET not in str(heard)


def test_an_ffn_rank_cannot_talk_attention_out_of_its_secret() -> None:
    error, heard = greeted_by({"role": "ffn", "secured": False, "proof": proof_of(None, "ffn", "a", "b", "c")})
    assert "a secret is set on attention rank 0 but not on FFN rank 0" in str(error)
    assert (heard or {}).get("say") == "refuse"


@pytest.mark.parametrize("secured", [True, False])
def test_an_attention_rank_cannot_talk_the_ffn_rank_out_of_its_secret(front: Front, secured: bool) -> None:
    """It says that it has a secret, or that it has none, and proves with none."""
    with front.call() as sock:
        hello = hello_of(identity("attention", None), "0" * 32, "t") | {"secured": secured}
        send_message(sock, hello, Deadline(5))
        theirs = str((said(sock) or {})["nonce"])
        send_message(sock, {"say": "proof", "proof": proof_of(None, "attention", "0" * 32, theirs, "t")}, Deadline(5))
        verdict = said(sock) or {}
    assert verdict["accepted"] is False
    expected = "different secrets" if secured else "a secret is set on FFN rank 0 but not on attention rank 0"
    assert expected in str(verdict["reason"])
    assert front.arrivals == []


def test_swapped_roles() -> None:
    """Two of one role do not agree: an echo of one's own hello is not a peer."""
    error, _ = greeted_by({})
    assert isinstance(error, FrameError)
    assert "begins with the hello of role ffn" in str(error)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(FrameError, match="begins with the hello of role attention"):
        answer_attention(theirs, identity("ffn"), hello_of(identity("ffn"), "0" * 32, "t"), Deadline(5))


def test_different_secrets_are_told_apart_in_no_way(front: Front, caplog: pytest.LogCaptureFixture) -> None:
    """A guess that shares a beginning, and one that does not, get one and the same sentence."""
    sentences = set()
    for guess in (SECRET[:-1], SECRET + "x", "z"):
        with pytest.raises(HandshakeRefused) as refused:
            dial(front.address, identity("attention", guess), 0, Deadline(5))
        sentences.add(str(refused.value))
    assert len(sentences) == 1
    assert SECRET not in caplog.text


def test_callers_that_say_nothing_keep_nobody_out(front: Front) -> None:
    """Twice as many as are greeted at once stay silent; an honest rank does not wait for them to run out of time."""
    with ExitStack() as stack:
        for _ in range(2 * MAX_GREETINGS):
            stack.enter_context(front.call())
        start, deadline = time.monotonic(), Deadline(10)
        while not deadline.passed:
            try:
                pair = dial(front.address, identity("attention"), 0, deadline)
            except ConnectorError:  # the silent ones have their moment too
                time.sleep(0.05)
                continue
            pair.control.close()
            pair.data.close()
            break
        assert time.monotonic() - start < 2


def test_agreeing_again_and_again_costs_one_place(front: Front) -> None:
    """Callers that agree and never bring their data connection: the last one of a rank is expected, no other."""
    with ExitStack() as stack:
        calls = [stack.enter_context(front.call()) for _ in range(5)]
        for call in calls:
            greet_ffn(call, identity("attention"), 0, Deadline(5))
        for call in calls[:-1]:
            assert said(call) is None
