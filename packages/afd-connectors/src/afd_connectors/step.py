"""One forward pass as it is announced on the control plane: a fixed binary frame, primitives only."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from afd_connectors.errors import FrameError

MAX_STAGES = 2
MAX_SEQ = 2**63 - 1
MAX_TOKENS = 2**31 - 1
_MAGIC = b"AFDS"
_VERSION = 1
_FRAME = struct.Struct(f"<4sBBBxQ{MAX_STAGES}I")
STEP_BYTES = _FRAME.size


class Mode(IntEnum):
    """How a step runs: plainly, before a capture, while capturing a graph, or from one."""

    EAGER = 0
    WARMUP = 1
    CAPTURE = 2
    REPLAY = 3


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass of one attention rank.

    seq: grows with every step of a port; tokens: rows of each stage. Raises ValueError when out of range.
    """

    seq: int
    mode: Mode
    tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.seq <= MAX_SEQ:
            raise ValueError(f"seq must lie in 0..{MAX_SEQ}, found {self.seq}.")
        if not 1 <= len(self.tokens) <= MAX_STAGES:
            raise ValueError(f"a step has 1 to {MAX_STAGES} stages, found {len(self.tokens)}.")
        for count in self.tokens:
            if not 0 <= count <= MAX_TOKENS:
                raise ValueError(f"token counts must lie in 0..{MAX_TOKENS}, found {count}.")

    def encode(self) -> bytes:
        """The frame, always STEP_BYTES long."""
        counts = self.tokens + (0,) * (MAX_STAGES - len(self.tokens))
        return _FRAME.pack(_MAGIC, _VERSION, self.mode, len(self.tokens), self.seq, *counts)

    @classmethod
    def decode(cls, frame: bytes | bytearray | memoryview) -> Step:
        """The step of a frame; FrameError when the bytes are anything but one whole valid frame."""
        if len(frame) != STEP_BYTES:
            raise FrameError(f"a step frame has {STEP_BYTES} bytes, found {len(frame)}.")
        magic, version, mode, stages, seq, *counts = _FRAME.unpack(frame)
        if magic != _MAGIC:
            raise FrameError(f"a step frame starts with {_MAGIC!r}, found {magic!r}.")
        if version != _VERSION:
            raise FrameError(f"this side speaks step frame version {_VERSION}, found {version}.")
        if not 1 <= stages <= MAX_STAGES or any(counts[stages:]):
            raise FrameError(f"a step frame counts 1 to {MAX_STAGES} stages, found {stages} for {counts}.")
        try:
            return cls(seq, Mode(mode), tuple(counts[:stages]))
        except ValueError as error:
            raise FrameError(f"a step frame holds a value out of range: {str(error).rstrip('.')}.") from error
