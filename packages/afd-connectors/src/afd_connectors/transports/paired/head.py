"""The head of a data frame: what follows it, in fixed binary form."""

from __future__ import annotations

import struct
from typing import NamedTuple

from afd_connectors.errors import FrameError

_MAGIC = b"AFDX"
_VERSION = 1
_HEAD = struct.Struct("<4sBBBBQII")
HEAD_BYTES = _HEAD.size


#: Which way a frame goes; plain numbers, because looking up an enum's costs as much as packing the frame.
REQUEST, REPLY = 0, 1


Fields = tuple[int, int, int, int, int, int]  # of a Head


class Head(NamedTuple):
    """Which exchange the frame belongs to.

    way: REQUEST or REPLY; rows: of hidden states that follow; router: dtype code of the logits after them, 0 for none.
    """

    way: int
    seq: int
    layer: int
    stage: int
    rows: int
    router: int = 0

    def encode(self) -> bytes:
        """HEAD_BYTES for the wire."""
        return _HEAD.pack(_MAGIC, _VERSION, self.way, self.stage, self.router, self.seq, self.layer, self.rows)


def request_frame(seq: int, layer: int, stage: int, rows: int, router: int) -> bytes:
    """What the head of a request encodes to, without the head in between."""
    return _HEAD.pack(_MAGIC, _VERSION, REQUEST, stage, router, seq, layer, rows)


def reply_frame(seq: int, layer: int, stage: int, rows: int) -> bytes:
    """What the head of an answer encodes to, without the head in between."""
    return _HEAD.pack(_MAGIC, _VERSION, REPLY, stage, 0, seq, layer, rows)


def reply_to(request: bytes) -> bytes:
    """The head of the answer to the request with that head."""
    magic, version, _, stage, _, seq, layer, rows = _HEAD.unpack(request)
    return _HEAD.pack(magic, version, REPLY, stage, 0, seq, layer, rows)


def decode(frame: bytes | bytearray | memoryview) -> Head:
    """The head in exactly HEAD_BYTES; FrameError when it is not one. The caller checks it further."""
    return Head(*fields(frame))


def fields(frame: bytes | bytearray | memoryview) -> Fields:
    """Those of `decode`, for who reads one per exchange."""
    magic, version, way, stage, router, seq, layer, rows = _HEAD.unpack(frame)
    if magic != _MAGIC or version != _VERSION:
        raise FrameError(f"a data frame starts with {_MAGIC!r} version {_VERSION}, found {magic!r} version {version}.")
    return way, seq, layer, stage, rows, router
