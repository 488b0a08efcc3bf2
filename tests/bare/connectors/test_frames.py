"""Frames survive the round trip, and no bytes at all do more than raise one sentence."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_connectors import Event, FrameError, Mode, Phase, Step, control
from afd_connectors.event import EVENT_BYTES
from afd_connectors.step import MAX_SEQ, MAX_TOKENS, STEP_BYTES
from afd_connectors.transports.paired import head as data_frame
from afd_connectors.transports.paired.head import HEAD_BYTES, Head

steps = st.builds(
    Step,
    st.integers(0, MAX_SEQ),
    st.sampled_from(Mode),
    st.lists(st.integers(0, MAX_TOKENS), min_size=1, max_size=2).map(tuple),
)


T = TypeVar("T")


def decoded(decode: Callable[[bytes], T], frame: bytes) -> T | None:
    """What a parser makes of bytes, None where it raised its one sentence; anything else fails the test."""
    said = "."
    found = None
    try:
        found = decode(frame)
    except FrameError as error:
        said = str(error)
    assert said.endswith(".")
    return found


@given(steps)
def test_step_round_trip(step: Step) -> None:
    frame = step.encode()
    assert len(frame) == STEP_BYTES
    assert Step.decode(frame) == step
    assert Step.decode(memoryview(frame)) == step


@given(st.binary(max_size=64) | st.binary(min_size=STEP_BYTES, max_size=STEP_BYTES))
def test_no_bytes_break_the_step_parser(frame: bytes) -> None:
    step = decoded(Step.decode, frame)
    assert step is None or step.encode()[:7] == frame[:7]


@given(steps, st.integers(0, STEP_BYTES - 1), st.integers(0, 255))
def test_one_changed_byte(step: Step, place: int, value: int) -> None:
    frame = bytearray(step.encode())
    frame[place] = value
    decoded(Step.decode, bytes(frame))


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (b"", "has 24 bytes, found 0"),
        (b"AFDX" + bytes(20), "starts with b'AFDS', found b'AFDX'"),
        (b"AFDS\x02" + bytes(19), "version 1, found 2"),
        (b"AFDS\x01\x00\x03" + bytes(17), "1 to 2 stages, found 3"),
        (b"AFDS\x01\x00\x00" + bytes(17), "1 to 2 stages, found 0"),
        (b"AFDS\x01\x09\x01" + bytes(17), "out of range: 9 is not a valid Mode"),
        (b"AFDS\x01\x00\x01\x00" + b"\xff" * 8 + bytes(8), "out of range: seq must lie"),
        (b"AFDS\x01\x00\x01\x00" + bytes(12) + b"\x01" + bytes(3), "stages, found 1"),
    ],
)
def test_bad_steps_say_what_was_found(frame: bytes, sentence: str) -> None:
    with pytest.raises(FrameError, match=sentence):
        Step.decode(frame)


@pytest.mark.parametrize("arguments", [(-1, (1,)), (0, ()), (0, (1, 1, 1)), (0, (-1,)), (2**63, (1,))])
def test_bad_step_values(arguments: tuple[int, tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="found"):
        Step(arguments[0], Mode.EAGER, arguments[1])


frames = st.tuples(st.sampled_from(control.Kind), st.binary(max_size=control.MAX_BODY))


@given(st.lists(frames, max_size=8), st.data())
def test_control_stream_is_cut_right(sent: list[tuple[control.Kind, bytes]], data: st.DataObject) -> None:
    stream = b"".join(control.encode(kind, body) for kind, body in sent)
    parser, found = control.Parser(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += parser.feed(stream[:size])
        stream = stream[size:]
    assert [(frame.kind, frame.body) for frame in found] == sent


@given(st.lists(st.binary(max_size=600), max_size=8))
def test_no_bytes_break_the_control_parser(pieces: list[bytes]) -> None:
    parser = control.Parser()
    for piece in pieces:
        if decoded(parser.feed, piece) is None:
            break


@given(
    st.builds(
        Event,
        st.sampled_from(Phase),
        st.floats(0, 1e6),
        st.integers(0, MAX_SEQ),
        st.integers(-1, 2**31 - 1),
        st.integers(-1, 1),
    ),
    st.floats(0, 1000),
)
def test_event_round_trip(event: Event, age: float) -> None:
    body = event.encode(event.at + age)
    assert len(body) == EVENT_BYTES
    found = Event.decode(body, 5000.0)
    assert (found.phase, found.seq, found.layer, found.stage) == (
        event.phase,
        event.seq,
        event.layer,
        event.stage,
    )
    assert abs((5000.0 - found.at) - age) < 0.01


@given(st.binary(max_size=40) | st.binary(min_size=EVENT_BYTES, max_size=EVENT_BYTES))
def test_no_bytes_break_the_event_parser(body: bytes) -> None:
    event = decoded(lambda frame: Event.decode(frame, 10.0), body)
    assert event is None or event.told(10.0)


@given(st.binary(min_size=HEAD_BYTES, max_size=HEAD_BYTES))
def test_no_bytes_break_the_data_parser(frame: bytes) -> None:
    for candidate in (frame, b"AFDX\x01" + frame[5:]):
        head = decoded(data_frame.decode, candidate)
        assert head is None or head.encode() == candidate


def test_data_head_round_trip() -> None:
    head = Head(1, 2**63, 7, 1, 2**32 - 1, 3)
    assert data_frame.decode(head.encode()) == head
    with pytest.raises(FrameError, match="starts with"):
        data_frame.decode(struct.pack("24x"))
