"""The lines of an attention rank whose requests are sent again when one is replaced."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from afd_connectors.dial import Dialled
from afd_connectors.errors import ConnectorError, PeerLost
from afd_connectors.event import Event
from afd_connectors.handshake import Identity
from afd_connectors.settings import Settings
from afd_connectors.transports import lines
from afd_connectors.transports.paired.line import Line
from afd_connectors.transports.paired.pending import Pending

log = logging.getLogger("afd.connectors")
MakeLine = Callable[[int, Dialled, Sequence[Pending]], Line]


class Lines(lines.Lines[Line]):
    """See lines.Lines. make_line: (FFN rank, its connections, open exchanges) -> what carries the rows."""

    def __init__(self, identity: Identity, settings: Settings, stages: Sequence[Pending], make_line: MakeLine) -> None:
        super().__init__(identity, settings, lambda peer, dialled, _deadline: make_line(peer, dialled, stages))
        self._stages = stages

    def beat(self, event: Event) -> None:
        """See lines.Lines."""
        for line in self:
            if line.lost is not None:
                continue
            try:
                line.channel.drain()
                line.channel.heartbeat(event)
            except ConnectorError as error:
                line.channel.lost = error.message
            if line.channel.lost is not None and not self.closed.is_set():
                line.since = time.monotonic()
                log.warning(
                    "attention rank %d lost FFN rank %d: %s; it reconnects with the next exchange",
                    self._layout.rank,
                    line.peer,
                    line.channel.lost,
                )

    def _inherit(self, died: Line) -> None:
        for stage, pending in enumerate(self._stages):
            pending.save(died.peer, died.held(stage))


def usable(line: Line) -> Line:
    """The line itself; why not, when it is broken or its peer is known to be gone."""
    if line.broken is not None:
        raise line.broken
    if line.channel.lost is not None:
        raise PeerLost(line.channel.lost)
    return line


def give_up(line: Line, error: ConnectorError) -> None:
    """From here on the line only waits to be replaced; the FFN rank sees at once that it ended."""
    if line.broken is None:
        line.broken, line.since = error, time.monotonic()
        line.hang_up()
