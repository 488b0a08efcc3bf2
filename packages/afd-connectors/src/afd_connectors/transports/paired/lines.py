"""All lines of an attention rank: how they are made, noticed to be lost, and made again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from afd_connectors.address import Address, ffn_choices, shown
from afd_connectors.deadline import Deadline
from afd_connectors.dial import Dialled, dial
from afd_connectors.errors import ConnectorError, DeadlineExceeded, HandshakeRefused, PeerLost
from afd_connectors.event import Event
from afd_connectors.handshake import Identity
from afd_connectors.layout import Layout
from afd_connectors.ports import PeerStatus
from afd_connectors.settings import Settings
from afd_connectors.transports.paired.line import Line
from afd_connectors.transports.paired.pending import Pending
from afd_connectors.waiting import Waiting

log = logging.getLogger("afd.connectors")
RETRY_S = 0.1
REFUSED_S = 1.0  # each refusal is a line in the other side's log
MakeLine = Callable[[int, Dialled, Sequence[Pending]], Line]


class Lines:
    """One line per FFN rank that this attention rank exchanges with.

    make_line: (FFN rank, its connections, open exchanges) -> what carries the rows; closed: nothing is awaited or
    made any more once it is set.
    """

    def __init__(self, identity: Identity, settings: Settings, stages: Sequence[Pending], make_line: MakeLine) -> None:
        self.closed = threading.Event()
        self._identity, self._settings = identity, settings
        self._layout: Layout = identity.layout
        self._stages, self._make_line = stages, make_line
        self._addresses = {peer: ffn_choices(settings, peer, self._layout.num_ffn) for peer in self._layout.peers}
        self._lines: dict[int, Line] = {}

    def __iter__(self) -> Iterator[Line]:
        return iter(list(self._lines.values()))

    def __getitem__(self, peer: int) -> Line:
        return self._lines[peer]

    def get(self, peer: int) -> Line | None:
        """The line to an FFN rank, None before the first one."""
        return self._lines.get(peer)

    def join(self) -> None:
        """The first lines to all FFN ranks within join_timeout_s, or none at all.

        Raises HandshakeRefused or DeadlineExceeded, of which only `peer` says where it happened.
        """
        deadline = Deadline(self._settings.join_timeout_s)
        for peer in self._layout.peers:
            try:
                self._lines[peer] = self._connect(peer, deadline)
            except ConnectorError as error:
                error.peer = peer
                self.free()
                raise

    def replace(self, peer: int, deadline: Deadline) -> Line | None:
        """A new line to `peer` in the place of a broken one; None when `closed` was set meanwhile.

        Raises HandshakeRefused or DeadlineExceeded, without the place where it happened.
        """
        died = self._lines[peer]
        line = self._connect(peer, deadline)
        for stage, pending in enumerate(self._stages):
            pending.save(peer, died.held(stage))
        self._lines[peer] = line
        died.free()
        if self.closed.is_set():  # whoever set it did not know of the new line
            self.free()
            return None
        return line

    def statuses(self) -> tuple[PeerStatus, ...]:
        """See Port.peers."""
        return tuple(
            PeerStatus(
                peer,
                "connected" if line.broken is None and line.channel.lost is None else "lost",
                line.since,
                shown(self._addresses[peer][0]),
                line.channel.event,
            )
            for peer, line in sorted(self._lines.items())
        )

    def beat(self, event: Event) -> None:
        """On the pulse's thread: shows life and notices a peer that went away between steps."""
        for line in self:
            if line.broken is not None or line.channel.lost is not None:
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

    def say_goodbye(self) -> None:
        """Ends all connections, which wakes a thread that waits for one."""
        for line in self:
            line.channel.bye()
            line.hang_up()

    def free(self) -> None:
        """Gives all descriptors back; only once no other thread uses them."""
        for line in self:
            line.hang_up()
            line.free()

    def _connect(self, peer: int, deadline: Deadline) -> Line:
        """A line to `peer` at its address or, in turn, at a standby's; the one that answers comes first from now on.

        A refusal that is final ends the wait where no other address is left that may let this rank in.
        """
        choices = self._addresses[peer]
        waiting = Waiting(log, self._layout.rank, peer, ", ".join(shown(each) for each in choices), deadline)
        reasons: dict[Address, str] = {}
        while not deadline.passed:
            hopeless: HandshakeRefused | None = None
            refusals = 0
            for place, address in enumerate(choices):
                self._go_on_or_raise()
                try:
                    dialled = dial(address, self._identity, peer, deadline)
                    line = self._on(dialled, peer)
                except HandshakeRefused as refused:
                    hopeless, refusals = hopeless or refused, refusals + refused.final
                    reasons[address] = refused.message.rstrip(".")
                except ConnectorError as error:
                    if not deadline.passed:  # a try that was cut short tells nothing
                        reasons[address] = error.message.rstrip(".")
                else:
                    self._addresses[peer] = (*choices[place:], *choices[:place])
                    return line
            if hopeless is not None and refusals == len(choices):
                raise hopeless
            waiting.reason = "; ".join(reasons.values()) or waiting.reason
            waiting.tell()
            self.closed.wait(deadline.slice(RETRY_S if hopeless is None else REFUSED_S))
        self._go_on_or_raise()
        raise DeadlineExceeded(waiting.verdict())

    def _on(self, dialled: Dialled, peer: int) -> Line:
        try:
            return self._make_line(peer, dialled, self._stages)
        except ConnectorError:
            dialled.close()
            raise

    def _go_on_or_raise(self) -> None:
        if self.closed.is_set():
            raise PeerLost("this side was closed while it connected")


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
