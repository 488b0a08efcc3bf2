"""The frames of the control plane: a fixed head, a short body, primitives only."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from afd_connectors.errors import FrameError

_MAGIC = b"AFDC"
_VERSION = 1
_HEAD = struct.Struct("<4sBBH")
_LOGITS = struct.Struct("<IB")
MAX_BODY = 256


class Kind(IntEnum):
    """What a control frame carries.

    LOGITS: a layer and the dtype of its router logits, where a receiver of rows must know it before they come.
    """

    STEP = 1
    HEARTBEAT = 2
    BYE = 3
    LOGITS = 4


class Frame(NamedTuple):
    """One control frame."""

    kind: Kind
    body: bytes


def encode(kind: Kind, body: bytes) -> bytes:
    """A frame for the wire; bodies are at most MAX_BODY bytes."""
    return _HEAD.pack(_MAGIC, _VERSION, kind, len(body)) + body


class Logits(NamedTuple):
    """What an attention rank tells of a layer: the dtype code of the router logits that it sends, 0 for none."""

    layer: int
    code: int

    def encode(self) -> bytes:
        """The body of a frame."""
        return _LOGITS.pack(*self)

    @classmethod
    def decode(cls, body: bytes) -> Logits:
        """FrameError when the body is of another length."""
        if len(body) != _LOGITS.size:
            raise FrameError(f"what is told of a layer's logits has {_LOGITS.size} bytes, found {len(body)}.")
        return cls(*_LOGITS.unpack(body))


class Parser:
    """Cuts a stream of bytes into control frames and holds at most one incomplete frame."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete by now; FrameError at the first byte that cannot belong to one."""
        self._held += data
        frames = []
        start = 0
        while len(self._held) - start >= _HEAD.size:
            magic, version, kind, length = _HEAD.unpack_from(self._held, start)
            if magic != _MAGIC or version != _VERSION:
                raise FrameError(
                    f"a control frame starts with {_MAGIC!r} version {_VERSION}, found {magic!r} version {version}."
                )
            if length > MAX_BODY:
                raise FrameError(f"a control frame carries at most {MAX_BODY} bytes, found {length}.")
            if len(self._held) - start < _HEAD.size + length:
                break
            try:
                known = Kind(kind)
            except ValueError as error:
                raise FrameError(f"a control frame is of kind 1 to {max(Kind)}, found {kind}.") from error
            start += _HEAD.size
            frames.append(Frame(known, bytes(self._held[start : start + length])))
            start += length
        del self._held[:start]
        return frames
