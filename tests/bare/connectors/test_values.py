"""Shape, settings, deadlines, errors and addresses."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_connectors import (
    ConnectorError,
    Deadline,
    DeadlineExceeded,
    Event,
    FrameError,
    HandshakeRefused,
    Layout,
    PeerLost,
    Phase,
    Settings,
    Shape,
)
from afd_connectors.address import ffn_address, parse
from afd_connectors.place import Place


def test_shape_bytes() -> None:
    shape = Shape(10, 128, "bfloat16", 4, stages=2, router=8)
    assert (shape.row_bytes, shape.hidden_bytes, shape.router_bytes) == (256, 2560, 320)
    assert shape.exchange_bytes == 2880


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": 0},
        {"hidden": -1},
        {"dtype": "int8"},
        {"layers": 0},
        {"stages": 0},
        {"stages": 3},
        {"router": -1},
        {"tokens": 1.5},
    ],
)
def test_bad_shapes(wrong: dict[str, object]) -> None:
    name, value = next(iter(wrong.items()))
    with pytest.raises(ValueError, match=f"{name} must .*found {value!r}"):
        Shape(**({"tokens": 1, "hidden": 1, "dtype": "float32", "layers": 1} | wrong))


@pytest.mark.parametrize(
    "wrong",
    [
        {"host": ""},
        {"port": 0},
        {"port": 65536},
        {"timeout_s": 0},
        {"recovery_timeout_s": -1},
        {"join_timeout_s": float("nan")},
        {"secret": ""},
    ],
)
def test_bad_settings(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Settings(**wrong)


def test_settings_never_show_the_secret() -> None:
    assert "hush" not in repr(Settings(secret="hush"))


@given(st.floats(0.001, 1e6), st.lists(st.floats(0, 1e5), max_size=10))
def test_deadline_in_simulated_time(seconds: float, passing: list[float]) -> None:
    now = [100.0]
    deadline = Deadline(seconds, clock=lambda: now[0])
    for more in passing:
        now[0] += more
        assert 0 <= deadline.remaining() <= seconds + 1e-9
        assert deadline.passed == (deadline.remaining() == 0)
        assert deadline.slice(1.0) <= 1.0
        assert deadline.spent() == now[0] - 100.0


@pytest.mark.parametrize("kind", [ConnectorError, PeerLost, DeadlineExceeded, HandshakeRefused, FrameError])
def test_errors_say_everything_in_one_sentence(kind: type[ConnectorError]) -> None:
    place = Place("tcp", Layout("attention", 2, 4, 2), Event(Phase.SENT, 0.0, 17, 3, 1))
    error = place.error(kind, "no answer came.", 1, Event(Phase.COMPUTED, 0.0, 17, 3, 0), step=17, layer=3, stage=1)
    text = str(error)
    assert text.startswith("no answer came (tcp, attention rank 2, peer FFN rank 1, step 17, layer 3, stage 1; ")
    assert "own last event: sent layer 3 stage 1 of step 17 " in text
    assert "peer's last event: took up layer 3 stage 0 of step 17 " in text
    assert text.count(".") - text.count(" s ago") >= 1
    assert text.endswith(").")
    assert isinstance(error, ConnectorError)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - engines pass errors between their processes
    assert type(again) is kind
    assert str(again) == text
    assert again.peer == 1


def test_plain_errors_are_plain() -> None:
    assert str(FrameError("expected four bytes, found two.")) == "expected four bytes, found two."


def test_addresses() -> None:
    settings = Settings(host="h", port=1239)
    assert ffn_address(settings, 2, 3) == ("h", 1241)
    listed = Settings(extra={"ffn_addresses": ["a:1", "[::1]:2"]})
    assert ffn_address(listed, 1, 2) == ("::1", 2)
    with pytest.raises(ValueError, match="must list 3 addresses"):
        ffn_address(listed, 1, 3)
    with pytest.raises(ValueError, match="port 65536"):
        ffn_address(Settings(port=65535), 1, 2)


@pytest.mark.parametrize("host", ["a\0b", "a\ud800"])
def test_hosts_that_no_resolver_takes_are_refused(host: str) -> None:
    with pytest.raises(ValueError, match=r'^ffn_addresses must hold "host:port" strings .*, found ') as raised:
        parse([f"{host}:1"])
    str(raised.value).encode()


@given(st.none() | st.text() | st.integers() | st.lists(st.text() | st.integers(), max_size=3))
def test_no_address_option_breaks_the_parser(listed: object) -> None:
    said = "found"
    try:
        parse(listed)
    except ValueError as error:
        said = str(error)
    assert "found" in said


def test_a_secret_that_cannot_be_encoded_is_refused_unseen() -> None:
    with pytest.raises(ValueError, match="secret must be UTF-8 text") as raised:
        Settings(secret="hush\udcff")
    assert "hush" not in str(raised.value)
    assert raised.value.__cause__ is None
