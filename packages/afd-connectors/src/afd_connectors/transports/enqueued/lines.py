"""The lines of an attention rank whose steps are void once one is lost, and how lost ones are made again."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from afd_connectors.deadline import Deadline
from afd_connectors.event import Event
from afd_connectors.handshake import Identity
from afd_connectors.settings import Settings
from afd_connectors.transports import lines
from afd_connectors.transports.enqueued.carrier import Carrier
from afd_connectors.transports.enqueued.line import Line

log = logging.getLogger("afd.connectors")
ENDED_S = 5.0


class Lines(lines.Lines[Line]):
    """See lines.Lines. logits: see Line."""

    def __init__(
        self, identity: Identity, settings: Settings, carrier: Carrier, logits: Mapping[int, int] | None = None
    ) -> None:
        known = {} if logits is None else logits
        super().__init__(
            identity,
            settings,
            lambda peer, dialled, limit: Line(peer, dialled, carrier.accept(dialled.data, peer, limit), known),
        )
        self._awaited: dict[object, float] = {}  # by wait, because several threads may wait at once

    def lost(self) -> Line | None:
        """The first line that is lost, if any is."""
        return next((line for line in self if line.lost is not None), None)

    def again(self, line: Line, deadline: Deadline) -> None:
        """A new line in the place of a lost one, to a standby rather than to where it was; raises as `replace` does."""
        log.warning(
            "attention rank %d lost FFN rank %d: %s; reconnecting for up to %g s",
            self._layout.rank,
            line.peer,
            line.lost,
            deadline.seconds,
        )
        # Whoever found it lost may not have told its link yet, which must not end what it shares with the new one.
        line.hang_up()
        first, *others = self._addresses[line.peer]
        self._addresses[line.peer] = (*others, first)
        if self.replace(line.peer, deadline) is not None:
            log.info(
                "attention rank %d reached FFN rank %d after %.2f s", self._layout.rank, line.peer, deadline.spent()
            )
        # Meanwhile the lost one is freed, which must not happen while graphs are captured.
        if not line.link.ended(deadline.slice(ENDED_S)):
            log.warning("attention rank %d could not free the lost connection within %g s", self._layout.rank, ENDED_S)

    @contextmanager
    def awaiting(self) -> Iterator[None]:
        """While inside, the device owes what is enqueued: FFN ranks that live and do not answer are lost in time."""
        wait = object()
        self._awaited[wait] = time.monotonic()
        try:
            yield
        finally:
            del self._awaited[wait]

    def beat(self, event: Event) -> None:
        """See lines.Lines."""
        self.sweep(event)

    def sweep(self, event: Event | None = None) -> None:
        """On the watch's and the pulse's thread; shows life where `event` is given."""
        limit = self._settings.timeout_s
        late = time.monotonic() - min(tuple(self._awaited.values()), default=math.inf) > limit
        for line in self:
            if line.lost is not None or self.closed.is_set():
                continue
            line.look(limit, event)
            if late and line.lost is None:
                line.lose(f"its heartbeats go on and it has not answered for {limit:g} s")
            if line.lost is not None:
                log.warning("attention rank %d lost FFN rank %d: %s", self._layout.rank, line.peer, line.lost)
