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


class Head(NamedTuple):
    """Which exchange the frame belongs to; a tuple because two are made per exchange.

    way: REQUEST or REPLY; rows: of hidden states that follow; router: dtype code of the logits after them, 0 for none.
    """

    way: int
    seq: int
    layer: int
    stage: int
    rows: int
    router: int = 0

    def reply(self) -> Head:
        """The head of the answer to a request."""
        return Head(REPLY, self.seq, self.layer, self.stage, self.rows)

    def reply_frame(self) -> bytes:
        """What `reply` encodes to, without the head in between."""
        return _HEAD.pack(_MAGIC, _VERSION, REPLY, self.stage, 0, self.seq, self.layer, self.rows)

    def encode(self) -> bytes:
        """HEAD_BYTES for the wire."""
        return _HEAD.pack(_MAGIC, _VERSION, self.way, self.stage, self.router, self.seq, self.layer, self.rows)


def decode(frame: bytes | bytearray | memoryview) -> Head:
    """The head in exactly HEAD_BYTES; FrameError when it is not one. The caller checks it further."""
    magic, version, way, stage, router, seq, layer, rows = _HEAD.unpack(frame)
    if magic != _MAGIC or version != _VERSION:
        raise FrameError(f"a data frame starts with {_MAGIC!r} version {_VERSION}, found {magic!r} version {version}.")
    return head_of(way, seq, layer, stage, rows, router)


def head_of(way: int, seq: int, layer: int, stage: int, rows: int, router: int = 0) -> Head:
    """A head as its own call makes it, which takes three times as long."""
    return tuple.__new__(Head, (way, seq, layer, stage, rows, router))
