"""The errors of all transports: one sentence that says what failed where, and the same as fields."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

MOST = 500  # characters of a sentence that another process wrote

if TYPE_CHECKING:
    from afd_connectors.event import Event
    from afd_connectors.layout import Role


class ConnectorError(Exception):
    """A transport failed; `str()` is one sentence, the fields say the same to programs.

    Fields that do not apply are None. step is the step's seq; peer is the rank in the other role.
    """

    def __init__(
        self,
        message: str,
        *,
        transport: str | None = None,
        role: Role | None = None,
        rank: int | None = None,
        peer: int | None = None,
        step: int | None = None,
        layer: int | None = None,
        stage: int | None = None,
        own_event: Event | None = None,
        peer_event: Event | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.transport = transport
        self.role = role
        self.rank = rank
        self.peer = peer
        self.step = step
        self.layer = layer
        self.stage = stage
        self.own_event = own_event
        self.peer_event = peer_event
        now = time.monotonic()  # ages are told as of the failure, not as of the printing
        self._own_told = own_event.told(now) if own_event else "none"
        self._peer_told = peer_event.told(now) if peer_event else "none known"

    def __str__(self) -> str:
        where = [self.transport] if self.transport else []
        if self.role is not None:
            where.append(f"{spoken(self.role)} rank {self.rank}")
        if self.peer is not None and self.role is not None:
            other: Role = "ffn" if self.role == "attention" else "attention"
            where.append(f"peer {spoken(other)} rank {self.peer}")
        for name, value in (("step", self.step), ("layer", self.layer), ("stage", self.stage)):
            if value is not None:
                where.append(f"{name} {value}")
        if not where:
            return self.message
        events = f"; own last event: {self._own_told}; peer's last event: {self._peer_told}"
        return f"{self.message.rstrip('.')} ({', '.join(where)}{events if self.peer is not None else ''})."


class PeerLost(ConnectorError):
    """The peer's process or connection ended."""


class DeadlineExceeded(ConnectorError):
    """A peer that may be alive did not do in time what it owed."""


class HandshakeRefused(ConnectorError):
    """The two sides do not fit together, or one could not prove the shared secret.

    final: False when the same attempt may succeed later, such as while an older connection still lives.
    """

    final: bool = True


class FrameError(ConnectorError):
    """Bytes arrived that are not what the protocol allows at this point."""


def quoted(value: object, most: int = 60) -> str:
    """A value that another process chose, quoted on one line of at most `most` characters."""
    try:
        return _cut(repr(value), most)
    except RecursionError:  # JSON that could just be read nests deeper than what can be shown of it
        return f"a deeply nested {type(value).__name__}"


def one_line(text: str, most: int = MOST) -> str:
    """A sentence that another process wrote: escaped, so that it forges no log line, and cut to `most`."""
    return _cut("".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: most + 1]), most)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def spoken(role: Role) -> str:
    """A role as it is written in sentences."""
    return "FFN" if role == "ffn" else role
