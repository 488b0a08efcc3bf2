"""Streams of control frames, damaged anywhere and cut anywhere: the same frames are found, and little is kept."""

from __future__ import annotations

import socket

from hypothesis import example, given
from hypothesis import strategies as st

from afd_connectors import Event, FrameError, Mode, Phase, Step, control
from afd_connectors.channel import Channel
from afd_connectors.control import MAX_BODY, Kind, Parser

HEAD = len(control.encode(Kind.BYE, b""))
steps = st.builds(Step, st.integers(0, 2**63 - 1), st.sampled_from(Mode), st.tuples(st.integers(0, 2**31 - 1)))
beats = st.builds(Event, st.sampled_from(Phase), st.just(0.0), st.integers(0, 2**63 - 1), st.just(3), st.just(1))
valid = st.one_of(
    steps.map(lambda step: control.encode(Kind.STEP, step.encode())),
    beats.map(lambda event: control.encode(Kind.HEARTBEAT, event.encode(1.0))),
    st.binary(max_size=MAX_BODY).map(lambda body: control.encode(Kind.BYE, body)),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A stream of valid frames of which some bytes are changed, lost or added."""
    stream = bytearray(b"".join(draw(st.lists(valid, min_size=1, max_size=6))))
    for at, lost, added in draw(
        st.lists(st.tuples(st.integers(0, len(stream)), st.integers(0, 40), st.binary(max_size=40)), max_size=3)
    ):
        stream[at : at + lost] = added
    return bytes(stream)


def outcome(pieces: list[bytes]) -> tuple[list[control.Frame], bool]:
    """The frames of the pieces up to the first that is refused, and whether one was."""
    parser, frames = Parser(), []
    for piece in pieces:
        try:
            frames += parser.feed(piece)
        except FrameError:
            return frames, True
        assert len(parser._held) < HEAD + MAX_BODY
    return frames, False


@given(damaged(), st.lists(st.integers(1, 300), max_size=12))
@example(control.encode(Kind.BYE, bytes(MAX_BODY)) * 3, [])
def test_where_a_stream_is_cut_changes_nothing(stream: bytes, sizes: list[int]) -> None:
    pieces, rest = [], stream
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    found, refused = outcome([*pieces, rest])
    single, refused_too = outcome([stream[at : at + 1] for at in range(len(stream))])
    assert refused == refused_too
    # A piece with a bad frame is refused whole, so byte by byte at least as many frames come through.
    assert found == single[: len(found)]
    assert refused or found == single


@given(damaged())
def test_what_frames_carry_is_parsed_or_refused(stream: bytes) -> None:
    for frame in outcome([stream])[0]:
        decode = Step.decode if frame.kind is Kind.STEP else lambda body: Event.decode(body, 2.0)
        said = ""
        try:
            decode(frame.body)
        except FrameError as error:
            said = str(error)
        assert len(said) < 300
        assert said.isprintable()


def test_one_drain_takes_only_so_much() -> None:
    """A peer that writes without end must not hold the thread that serves all; what is left is taken next time."""
    theirs, ours = socket.socketpair()
    with theirs, ours:
        theirs.setblocking(False)
        beat, sent = control.encode(Kind.HEARTBEAT, Event(Phase.OPENED, 0.0).encode(1.0)), 0
        try:
            while True:
                sent += theirs.send(beat * 500)
        except BlockingIOError:
            assert sent > 2**16
        channel, drains = Channel(ours), 0
        while unread(ours):
            channel.drain()
            drains += 1
            assert drains < 10_000
        assert drains > 2


def unread(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return False
