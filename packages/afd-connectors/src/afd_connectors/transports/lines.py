"""All lines of an attention rank: how they are made, looked after, and made again; whatever carries the rows."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from afd_connectors.address import Address, ffn_choices, shown
from afd_connectors.channel import Channel
from afd_connectors.deadline import Deadline
from afd_connectors.dial import Dialled, Unanswered, dial
from afd_connectors.errors import ConnectorError, DeadlineExceeded, HandshakeRefused, PeerLost
from afd_connectors.event import Event
from afd_connectors.handshake import Identity
from afd_connectors.layout import Layout
from afd_connectors.ports import PeerStatus
from afd_connectors.settings import Settings
from afd_connectors.waiting import Waiting

log = logging.getLogger("afd.connectors")
RETRY_S = 0.1
REFUSED_S = 1.0  # each refusal is noticed by the other side


class Connected(Protocol):
    """What is asked of a line to an FFN rank; see paired.line.Line and enqueued.line.Line."""

    peer: int
    channel: Channel

    @property
    def since(self) -> float:
        """time.monotonic() at which its state began."""

    @property
    def lost(self) -> str | None:
        """Why it cannot be used any more, None while it can."""

    def hang_up(self) -> None:
        """Ends it for every thread."""

    def free(self) -> None:
        """Closes its sockets; only once no other thread uses them."""


L = TypeVar("L", bound=Connected)


class Lines(ABC, Generic[L]):
    """One line per FFN rank that this attention rank exchanges with.

    make: (FFN rank, its agreed connections, deadline) -> what carries the rows, or a ConnectorError; closed: nothing
    is awaited or made any more once it is set.
    """

    def __init__(self, identity: Identity, settings: Settings, make: Callable[[int, Dialled, Deadline], L]) -> None:
        self.closed = threading.Event()
        self._identity, self._settings, self._make = identity, settings, make
        self._layout: Layout = identity.layout
        self._addresses = {peer: ffn_choices(settings, peer, self._layout.num_ffn) for peer in self._layout.peers}
        self._lines: dict[int, L] = {}

    @abstractmethod
    def beat(self, event: Event) -> None:
        """On the pulse's thread: shows life and notices a peer that went away between steps."""

    def __iter__(self) -> Iterator[L]:
        return iter(list(self._lines.values()))

    def __getitem__(self, peer: int) -> L:
        return self._lines[peer]

    def get(self, peer: int) -> L | None:
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

    def replace(self, peer: int, deadline: Deadline) -> L | None:
        """A new line to `peer` in the place of a broken one; None when `closed` was set meanwhile.

        Raises HandshakeRefused or DeadlineExceeded, without the place where it happened.
        """
        died = self._lines[peer]
        line = self._connect(peer, deadline)
        self._inherit(died)
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
                "connected" if line.lost is None else "lost",
                line.since,
                shown(self._addresses[peer][0]),
                line.channel.event,
            )
            for peer, line in sorted(self._lines.items())
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

    def _inherit(self, died: L) -> None:
        """Takes what its successor needs from a line that is about to be freed."""

    def _connect(self, peer: int, deadline: Deadline) -> L:
        """A line to `peer` at its address or, in turn, at a standby's; the one that answers comes first from now on.

        A refusal that is final ends the wait where no other address is left that may let this rank in. Whoever answers
        and fails for the same reason again is tried less and less often.
        """
        choices = self._addresses[peer]
        waiting = Waiting(log, self._layout.rank, peer, ", ".join(shown(each) for each in choices), deadline)
        reasons: dict[Address, str] = {}
        pause = RETRY_S
        while not deadline.passed:
            hopeless: HandshakeRefused | None = None
            refusals, before = 0, dict(reasons)
            answered = False
            for place, address in enumerate(choices):
                self._go_on_or_raise()
                try:
                    line = self._on(dial(address, self._identity, peer, deadline), peer, deadline)
                except HandshakeRefused as refused:
                    hopeless, refusals = hopeless or refused, refusals + refused.final
                    reasons[address] = refused.message.rstrip(".")
                except ConnectorError as error:
                    answered = answered or not isinstance(error, Unanswered)
                    if not deadline.passed:  # a try that was cut short tells nothing
                        reasons[address] = error.message.rstrip(".")
                else:
                    self._addresses[peer] = (*choices[place:], *choices[:place])
                    return line
            if hopeless is not None and refusals == len(choices):
                raise hopeless
            waiting.reason = "; ".join(reasons.values()) or waiting.reason
            waiting.tell()
            pause = min(2 * pause, REFUSED_S) if answered and reasons == before else RETRY_S
            self.closed.wait(deadline.slice(pause if hopeless is None else REFUSED_S))
        self._go_on_or_raise()
        raise DeadlineExceeded(waiting.verdict())

    def _on(self, dialled: Dialled, peer: int, deadline: Deadline) -> L:
        try:
            return self._make(peer, dialled, deadline)
        except ConnectorError:
            dialled.close()
            raise

    def _go_on_or_raise(self) -> None:
        if self.closed.is_set():
            raise PeerLost("this side was closed while it connected")
