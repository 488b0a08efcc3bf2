"""What a side did last, so that an error can say where both sides stood."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from afd_connectors.errors import FrameError

_FRAME = struct.Struct("<BBxxiQI")
EVENT_BYTES = _FRAME.size
_MAX_AGE_MS = 2**32 - 1


class Phase(IntEnum):
    """What the side did."""

    OPENED = 0
    ANNOUNCED = 1
    SENT = 2
    WAITED = 3
    RECEIVED = 4
    COMPUTED = 5
    ANSWERED = 6
    RECONNECTED = 7


# Looked up once for ports that name them in every exchange: an enum's attribute costs as much as a call.
SENT, RECEIVED, COMPUTED, ANSWERED = Phase.SENT, Phase.RECEIVED, Phase.COMPUTED, Phase.ANSWERED

_WORDS = {
    Phase.OPENED: "opened its port",
    Phase.ANNOUNCED: "announced",
    Phase.SENT: "sent",
    Phase.WAITED: "waited for the answer to",
    Phase.RECEIVED: "received the answer to",
    Phase.COMPUTED: "took up",
    Phase.ANSWERED: "answered",
    Phase.RECONNECTED: "reconnected for",
}


#: The fields of an Event: what is done so often that even a named tuple is left for whoever asks.
Moment = tuple[Phase, float, int, int, int]


class Event(NamedTuple):
    """One moment of one side.

    at: time.monotonic() seconds of this process; layer and stage are -1 where they do not apply.
    """

    phase: Phase
    at: float
    seq: int = 0
    layer: int = -1
    stage: int = -1

    def told(self, now: float) -> str:
        """The event in words with its age in seconds."""
        age = f"{max(0.0, now - self.at):.1f} s ago"
        if self.phase is Phase.OPENED:
            return f"{_WORDS[self.phase]} {age}"
        place = f"step {self.seq}" if self.layer < 0 else f"layer {self.layer} stage {self.stage} of step {self.seq}"
        return f"{_WORDS[self.phase]} {place} {age}"

    def encode(self, now: float) -> bytes:
        """The frame body of a heartbeat; carries the age because clocks of hosts differ."""
        age = min(_MAX_AGE_MS, max(0, int((now - self.at) * 1000)))
        return _FRAME.pack(self.phase, self.stage & 0xFF, self.layer, self.seq, age)

    @classmethod
    def decode(cls, body: bytes, now: float) -> Event:
        """The event of a heartbeat that arrived at `now`; FrameError when malformed."""
        if len(body) != EVENT_BYTES:
            raise FrameError(f"a heartbeat has {EVENT_BYTES} bytes, found {len(body)}.")
        phase, stage, layer, seq, age = _FRAME.unpack(body)
        try:
            known = Phase(phase)
        except ValueError as error:
            raise FrameError(f"a heartbeat names phase {phase}, which this side does not know.") from error
        return cls(known, now - age / 1000, seq, layer, -1 if stage == 0xFF else stage)
