"""tcp's FFN port under callers that do not keep the protocol: they are dropped, everybody else is served."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from afd_connectors import ConnectorError, Deadline, DeadlineExceeded, Mode, Shape, Step, control, resolve
from afd_connectors.address import ffn_address
from afd_connectors.control import Kind
from afd_connectors.dial import Dialled, dial
from afd_connectors.handshake import Identity, hello_of, recv_message, send_message
from afd_connectors.layout import Layout
from afd_connectors.testing import Group
from afd_connectors.testing.group import within
from afd_connectors.transports.paired.head import REPLY, REQUEST, Head

STEP = Step(5, Mode.EAGER, (3, 2))


@pytest.fixture
def group() -> Iterator[Group]:
    """2A1F with FFN rank 0 serving; attention rank 1 is the one that must not be disturbed."""
    with Group(resolve("tcp", "cpu"), Shape(16, 8, "bfloat16", 3, stages=2), attention=2) as group:
        group.start_ffn()
        yield group


def call(group: Group) -> socket.socket:
    """A bare connection to the FFN rank."""
    return socket.create_connection(("127.0.0.1", group.settings.port), timeout=8)


def agreed(group: Group) -> Dialled:
    """Both connections of attention rank 0 after a proper handshake."""
    me = Identity(Layout("attention", 0, 2, 1), group.facts, None)
    return dial(ffn_address(group.settings, 0, 1), me, 0, Deadline(5))


def is_dropped(sock: socket.socket) -> bool:
    """Whether the other side ends the connection within some seconds."""
    sock.settimeout(8)
    try:
        while sock.recv(4096):
            continue
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def message(body: bytes) -> bytes:
    """A handshake message with any body."""
    return b"AFDH" + len(body).to_bytes(4, "little") + body


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 4096,
        b"AFDH\xff\xff\xff\xff",
        message(b"[]"),
        message(b"{bad}"),
        message(b'{"say": "attach"}'),
        message(b'{"say": "hello", "role": "attention"}'),
        message(b"[" * 0xFFFF),
    ],
)
def test_garbage_is_dropped(group: Group, garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    port = group.open_attention(1)
    with call(group) as stranger:
        stranger.sendall(garbage)
        assert is_dropped(stranger)
    group.forward(port, 1, 3, 2)
    assert within(5, lambda: "FFN rank 0 dropped a connection from 127.0.0.1" in caplog.text)


def test_silence_and_drips_are_dropped(group: Group) -> None:
    """Callers that say nothing, or say it byte by byte, keep no place and slow nobody down."""
    port = group.open_attention(1)
    silent = [call(group) for _ in range(10)]
    drip = call(group)
    start = time.monotonic()
    group.forward(port, 1, 3, 2)
    assert time.monotonic() - start < 2
    dripped = 0
    try:
        while time.monotonic() - start < 8:
            drip.sendall(message(bytes(4096))[dripped : dripped + 1] or b" ")
            dripped += 1
            time.sleep(0.2)
    except OSError:
        dripped = -1
    assert dripped == -1
    assert 2 < time.monotonic() - start < 7
    assert all(is_dropped(sock) for sock in silent)
    for sock in (*silent, drip):
        sock.close()
    group.forward(port, 2, 3, 2)


def request(layer: int = 0, stage: int = 0, rows: int = 3, *, seq: int = 5, way: int = REQUEST, code: int = 0) -> bytes:
    """A data frame of attention rank 0."""
    return Head(way, seq, layer, stage, rows, code).encode() + bytes(16 * rows)


ANNOUNCED = control.encode(Kind.STEP, STEP.encode())
BAD_DATA = {
    "garbage": (b"\xde\xad" * 64, "a data frame starts with"),
    "oversize rows": (
        request()[:20] + (2**32 - 1).to_bytes(4, "little"),
        "with 4294967295 rows, announced were 3",
    ),
    "other rows": (request(rows=4), "with 4 rows, announced were 3"),
    "no rows": (request(rows=0), "with 0 rows, announced were 3"),
    "unknown stage": (request(stage=2), "expected stages below 2"),
    "unknown layer": (request(layer=3), "layers below 3"),
    "late": (request(seq=4), "late, after it announced step 5"),
    "an answer": (request(way=REPLY), "it sent an answer"),
    "unexpected logits": (request(code=1), "with logits of kind 1, expected none"),
    "twice": (request() + request(), "twice or out of order"),
    "out of order": (request(layer=1) + request(layer=0), "twice or out of order"),
}


def drops_alone(group: Group, caplog: pytest.LogCaptureFixture, sentence: str, said: bytes, sent: bytes = b"") -> None:
    """An agreed rank that says `said` and sends `sent` is dropped for what `sentence` tells, and another served on."""
    caplog.set_level(logging.INFO, "afd.connectors")
    port = group.open_attention(1)
    bad = agreed(group)
    bad.control.sendall(said)
    bad.data.sendall(sent)
    assert is_dropped(bad.data)
    assert is_dropped(bad.control)
    assert within(5, lambda: sentence in caplog.text), caplog.text
    group.forward(port, 1, 3, 2)


@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data_frames(group: Group, name: str, caplog: pytest.LogCaptureFixture) -> None:
    frames, sentence = BAD_DATA[name]
    drops_alone(group, caplog, sentence, ANNOUNCED, frames)
    group.forward(group.open_attention(0), 6, 3, 2)


BAD_CONTROL = {
    "garbage": (b"\xde\xad" * 64, "a control frame starts with"),
    "too long": (b"AFDC\x01\x01\xff\xff", "at most 256 bytes, found 65535"),
    "unknown kind": (b"AFDC\x01\x09\x00\x00", "of kind 1 to 4, found 9"),
    "no step": (control.encode(Kind.STEP, b"x"), "a step frame has"),
    "too many rows": (
        control.encode(Kind.STEP, Step(1, Mode.EAGER, (17,)).encode()),
        "has 17 rows in a stage",
    ),
    "the same step": (ANNOUNCED + ANNOUNCED, "it announced step 5 after step 5"),
    "no heartbeat": (control.encode(Kind.HEARTBEAT, b""), "a heartbeat has"),
}


@pytest.mark.parametrize("name", BAD_CONTROL)
def test_bad_control_frames(group: Group, name: str, caplog: pytest.LogCaptureFixture) -> None:
    frames, sentence = BAD_CONTROL[name]
    drops_alone(group, caplog, sentence, frames)


def test_request_before_its_announcement(group: Group) -> None:
    """The two connections may deliver in any order."""
    early = agreed(group)
    early.data.sendall(request())
    time.sleep(0.3)
    early.control.sendall(ANNOUNCED)
    early.data.settimeout(5)
    assert early.data.recv(4) == b"AFDX"
    early.control.close()
    early.data.close()


def test_request_that_is_never_announced(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    group.stop_ffn()
    group.limits(timeout_s=0.5)
    group.start_ffn()
    early = agreed(group)
    early.data.sendall(request())
    assert is_dropped(early.data)
    assert within(5, lambda: "a step that it did not announce" in caplog.text)


def test_silent_peer_in_mid_step_is_freed(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    """Without heartbeats a peer that owes requests loses its place after timeout_s; its successor gets it."""
    group.stop_ffn()
    group.limits(timeout_s=1.0)
    group.start_ffn()
    silent = agreed(group)
    silent.control.sendall(ANNOUNCED)
    assert is_dropped(silent.data)
    assert within(5, lambda: "in the middle of a step" in caplog.text)
    group.limits(timeout_s=5.0)
    group.forward(group.open_attention(0), 1, 3)


def test_attach_needs_the_token(group: Group) -> None:
    with call(group) as stranger:
        send_message(stranger, {"say": "attach", "token": "0" * 32, "proof": "0" * 64}, Deadline(2))
        assert is_dropped(stranger)


def test_address_in_use(group: Group) -> None:
    with pytest.raises(ConnectorError, match=r"FFN rank 0 cannot listen at 127.0.0.1:\d+: .*choose another"):
        group.build("ffn").open_ffn()


def test_nothing_listens_after_close(group: Group) -> None:
    port = group.open_attention(0)
    group.forward(port, 1, 3)
    port.close()
    group.stop_ffn()
    with pytest.raises(ConnectionRefusedError):
        call(group)


def test_large_exchanges_in_both_stages_do_not_lock_up() -> None:
    """Requests and answers beyond every socket buffer cross each other."""
    shape = Shape(4096, 1024, "float32", 2, stages=2)
    with Group(resolve("tcp", "cpu"), shape) as group:
        group.start_ffn()
        port = group.open_attention()
        step = Step(1, Mode.EAGER, (4096, 4096))
        port.begin(step)
        sent = [group.rows(4096), group.rows(4096)]
        for layer in range(2):
            for stage in (0, 1):
                port.send(step, layer, sent[stage], stage=stage)
            for stage in (1, 0):
                out = group.rows(4096)
                port.recv(step, layer, out, stage=stage)
                assert out.equal(sent[stage] * 2 + layer * 2 + stage)


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        ({"ffn_addresses": "127.0.0.1:1"}, "must be a list"),
        ({"ffn_addresses": ["nowhere"]}, "host:port"),
        ({"ffn_addresses": ["a:70000"]}, "1..65535"),
        ({"gather_ms": -1}, "gather_ms"),
        ({"gather_ms": "soon"}, "gather_ms"),
    ],
)
def test_options_are_checked(extra: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        resolve("tcp", "cpu").check_options(extra)


def test_attention_waits_on_past_an_answer_that_cannot_be_encoded() -> None:
    """A stranger at the FFN rank's address whose nonce is half a surrogate pair is garbage like any other."""
    calls: list[int] = []

    def impostor(listening: socket.socket) -> None:
        while True:
            try:
                sock, _ = listening.accept()
            except OSError:
                return
            with sock, contextlib.suppress(ConnectorError):
                recv_message(sock, Deadline(2))
                hello = hello_of(Identity(Layout("ffn", 0, 1, 1), group.facts, None), "\ud800")
                send_message(sock, hello, Deadline(2))
            calls.append(1)

    with Group(resolve("tcp", "cpu"), Shape(16, 8, "bfloat16", 3)) as group:
        group.limits(join_timeout_s=1.5)
        with socket.create_server(("127.0.0.1", group.settings.port)) as listening:
            thread = threading.Thread(target=impostor, args=(listening,), daemon=True)
            thread.start()
            with pytest.raises(DeadlineExceeded, match="needs a string 'nonce', found") as raised:
                group.open_attention()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(5)
    assert len(calls) > 1
    assert str(raised.value).isprintable()
