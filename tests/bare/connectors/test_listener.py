"""The FFN side's front door under strangers and in want: nobody ends it, floods its log or writes into it."""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from afd_connectors import ConnectorError, Deadline, Facts, FrameError, HandshakeRefused, Layout
from afd_connectors.address import Address, shown
from afd_connectors.dial import dial
from afd_connectors.handshake import Identity, greet_ffn, hello_of, recv_message, send_message, text
from afd_connectors.listener import Listener

FACTS = Facts("0.1.0", "0.30.0", "digest", "bfloat16", 128, 27, 0, "ffn", 1, (1, 2), 2, 1)
HALF = "\ud800"  # half of a surrogate pair: JSON can spell it, nothing can encode it
FORGED = "no\n2026-01-01 CRITICAL forged " + "x" * 1500
FOREIGN_HOSTS = ["ü..x", HALF, "a..b", "x" * 70]


def identity(role: str) -> Identity:
    return Identity(Layout(role, 0, FACTS.num_attention, FACTS.num_ffn), FACTS, None)


def free_address() -> Address:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return "127.0.0.1", int(probe.getsockname()[1])


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()


@pytest.fixture
def address(caplog: pytest.LogCaptureFixture) -> Iterator[Address]:
    """Where a listener listens that lets everybody in and seats nobody."""
    caplog.set_level(logging.INFO, "afd.connectors")
    found = free_address()
    listener = Listener(found, identity("ffn"), lambda _: None, lambda _: None)
    yield found
    listener.close()


class Door:
    """A listening socket whose accept fails while `lacks` is set."""

    def __init__(self, sock: socket.socket, lacks: OSError | None) -> None:
        self.sock, self.lacks, self.tries = sock, lacks, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.sock, name)

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def accept(self) -> tuple[socket.socket, object]:
        self.tries += 1
        if self.lacks is not None:
            raise self.lacks
        return self.sock.accept()


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> list[Door]:
    """The doors of all listeners made from here on; they lack descriptors."""
    doors: list[Door] = []
    listen = Listener._listen

    def without_descriptors(self: Listener, address: Address) -> Door:
        doors.append(Door(listen(self, address), OSError(errno.EMFILE, "Too many open files")))
        return doors[-1]

    monkeypatch.setattr(Listener, "_listen", without_descriptors)
    return doors


def test_want_of_descriptors_is_waited_out(door: list[Door], caplog: pytest.LogCaptureFixture) -> None:
    address = free_address()
    listener = Listener(address, identity("ffn"), lambda _: None, lambda _: None)
    with socket.create_connection(address, timeout=5):
        time.sleep(1.6)
        assert 2 <= door[0].tries <= 5
        assert caplog.text.count("could not accept a connection: Too many open files") == 1
        start = time.monotonic()
        listener.close()
        assert time.monotonic() - start < 0.3
    assert not listener._thread.is_alive()


def test_callers_are_served_once_descriptors_are_back(door: list[Door]) -> None:
    address = free_address()
    listener = Listener(address, identity("ffn"), lambda _: None, lambda _: None)
    with socket.create_connection(address, timeout=5) as sock:
        assert within(3, lambda: door[0].tries > 0)
        door[0].lacks = None
        assert greet_ffn(sock, identity("attention"), 0, Deadline(3)).rank == 0
    listener.close()


def test_a_caller_that_hung_up_costs_no_wait(door: list[Door], caplog: pytest.LogCaptureFixture) -> None:
    address = free_address()
    listener = Listener(address, identity("ffn"), lambda _: None, lambda _: None)
    door[0].lacks = ConnectionAbortedError(errno.ECONNABORTED, "hung up")
    with socket.create_connection(address, timeout=5) as sock:
        assert within(0.4, lambda: door[0].tries > 1)
        door[0].lacks = None
        assert greet_ffn(sock, identity("attention"), 0, Deadline(3)).rank == 0
    listener.close()
    assert "could not accept" not in caplog.text


def test_want_of_threads_ends_nothing(
    address: Address, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "afd-greeting":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with socket.create_connection(address, timeout=5) as sock:
            assert sock.recv(1) == b""
    with socket.create_connection(address, timeout=5) as sock:
        assert greet_ffn(sock, identity("attention"), 0, Deadline(3)).rank == 0
    assert caplog.text.count("could not accept a connection: can't start new thread") == 1


@pytest.mark.parametrize("key", ["say", "role", "nonce", "token", "proof", "facts"])
def test_what_cannot_be_encoded_is_refused(address: Address, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """In the hello, in the proof, and in the message of a data connection."""
    hello = hello_of(identity("attention"), "0" * 32, "t") | {key: HALF}
    for first, second in ((hello, {"say": "proof", "proof": HALF}), ({"say": "attach", "token": HALF}, {})):
        caplog.clear()
        with socket.create_connection(address, timeout=5) as sock:
            send_message(sock, first, Deadline(3))
            if second and key in ("proof", "facts"):  # read after the FFN rank has answered the hello
                recv_message(sock, Deadline(3))
                send_message(sock, second, Deadline(3))
            assert sock.recv(1) == b""
        assert within(3, lambda: "dropped a connection" in caplog.text)
        assert "unexpected" not in caplog.text
        assert all(record.exc_info is None and record.getMessage().isprintable() for record in caplog.records)


@pytest.mark.parametrize("value", [HALF, "a" + HALF + "b", "x" * 2049, None, 1])
def test_text_refuses(value: object) -> None:
    with pytest.raises(FrameError, match="needs a string 'nonce'") as refused:
        text({"nonce": value}, "nonce")
    assert len(str(refused.value)) < 150
    assert str(refused.value).isprintable()


def test_an_unforeseen_error_costs_one_connection_and_one_line(
    address: Address, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("odd\nline")

    with monkeypatch.context() as patched:
        patched.setattr("afd_connectors.listener.recv_message", fail)
        with socket.create_connection(address, timeout=5) as sock:
            assert sock.recv(1) == b""
        assert within(3, lambda: "unexpected KeyError" in caplog.text)
    (record,) = caplog.records
    assert record.exc_info is None
    assert record.getMessage().isprintable()
    with socket.create_connection(address, timeout=5) as sock:
        assert greet_ffn(sock, identity("attention"), 0, Deadline(3)).rank == 0


def test_a_refusal_writes_one_short_line(address: Address, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_connection(address, timeout=5) as sock:
        send_message(sock, hello_of(identity("attention"), "0" * 32, "t"), Deadline(3))
        recv_message(sock, Deadline(3))
        send_message(sock, {"say": "refuse", "reason": FORGED}, Deadline(3))
        verdict = recv_message(sock, Deadline(3))
    assert within(3, lambda: "refused attention rank 0" in caplog.text)
    for said in (caplog.records[-1].getMessage(), str(verdict["reason"])):
        assert "no\\n2026-01-01 CRITICAL forged" in said
        assert said.isprintable()
        assert len(said) < 650


@pytest.mark.parametrize("rank", [10**4000, -(10**4000), 2**40])
def test_a_rank_of_many_digits_is_not_logged(address: Address, rank: int, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_connection(address, timeout=5) as sock:
        send_message(sock, hello_of(identity("attention"), "0" * 32, "t") | {"rank": rank}, Deadline(3))
        assert sock.recv(1) == b""
    assert within(3, lambda: "needs a whole number 'rank'" in caplog.text)
    assert len(caplog.records[-1].getMessage()) < 300


def answered(*answers: dict[str, object]) -> ConnectorError:
    """What the attention side raises when these messages answer its own, one each."""
    ours, theirs = socket.socketpair()

    def answer() -> None:
        for message in answers:
            recv_message(theirs, Deadline(3))
            send_message(theirs, message, Deadline(3))

    thread = threading.Thread(target=answer)
    thread.start()
    with ours, theirs, pytest.raises(ConnectorError) as raised:
        greet_ffn(ours, identity("attention"), 0, Deadline(3))
    thread.join(5)
    return raised.value


@pytest.mark.parametrize("key", ["say", "role", "nonce", "proof"])
def test_the_attention_side_takes_it_for_garbage(key: str) -> None:
    error = answered(hello_of(identity("ffn"), "0" * 32) | {key: HALF})
    assert isinstance(error, FrameError)
    assert str(error).isprintable()


def test_the_attention_side_shows_a_refusal_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afd_connectors.handshake.hmac.compare_digest", lambda *_: True)
    error = answered(hello_of(identity("ffn"), "0" * 32), {"say": "verdict", "accepted": False, "reason": FORGED})
    assert isinstance(error, HandshakeRefused)
    assert str(error).isprintable()
    assert len(str(error)) <= 500


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_impossible_host_names(host: str) -> None:
    with pytest.raises(ConnectorError, match="does not answer: its host is not a possible host name") as dialled:
        dial((host, 9), identity("attention"), 0, Deadline(2))
    with pytest.raises(ConnectorError, match=r"FFN rank 0 cannot listen at .*: its host is not .*choose") as listened:
        Listener((host, 9), identity("ffn"), lambda _: None, lambda _: None)
    for raised in (dialled, listened):
        assert str(raised.value).isprintable()
    shown((host, 9)).encode()
