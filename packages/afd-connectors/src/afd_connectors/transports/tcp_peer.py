"""An FFN rank's connections to one attention rank: requests land in memory of their own, piece by piece."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Sequence

from afd_connectors.channel import NO_WAIT, SEND_NOW, Channel
from afd_connectors.checks import DTYPE_NAMES, step_problem
from afd_connectors.errors import FrameError, PeerLost
from afd_connectors.gather import Ready, Underway
from afd_connectors.layout import Layout
from afd_connectors.listener import Arrival
from afd_connectors.shape import Shape
from afd_connectors.step import Step
from afd_connectors.transports import tcp_frame
from afd_connectors.transports.tcp_buffers import Buffer, router_row_bytes
from afd_connectors.transports.tcp_frame import HEAD_BYTES, Head, Way
from afd_connectors.transports.tcp_line import after

PROGRESS_MS = 5  # a peer that takes nothing for this long is answered in the background, not waited for


class Peer:
    """One attention rank while it is connected; never waits, except PROGRESS_MS for an answer to leave.

    ready: whole requests by stage; rows: their row counts; dropped: no longer served; polled: the interest
    that is registered. `lent` holds the stages whose buffers a work is being computed from, which must not be
    written.
    """

    def __init__(
        self, arrival: Arrival, layout: Layout, shape: Shape, buffers: Sequence[Buffer], lent: set[int]
    ) -> None:
        self.rank, self.address, self.data = arrival.rank, arrival.address, arrival.data
        self.channel = Channel(arrival.control, self._begin)
        self.since = time.monotonic()
        self.dropped = False
        self.ready: dict[int, Ready] = {}
        self.rows: dict[int, int] = {}
        self.step: Step | None = None
        self.buffers, self.lent = buffers, lent
        self._layout, self._shape = layout, shape
        self._expected: tuple[int, ...] = ()
        self._last = [-1] * shape.stages
        self._raw_head = memoryview(bytearray(HEAD_BYTES))
        self._rest = [self._raw_head]
        self._head: Head | None = None
        self._landing = False
        self._blocked_since: float | None = None
        self._unsent = bytearray()
        self.polled = int(select.POLLIN)

    def _begin(self, step: Step) -> None:
        """A step was announced; runs under the channel's lock on whichever thread drains it."""
        problem = step_problem(step, self._shape)
        if problem is not None:
            raise FrameError(problem)
        if self.step is not None and step.seq <= self.step.seq:
            raise FrameError(f"it announced step {step.seq} after step {self.step.seq}")
        if self.ready:
            raise FrameError(f"it announced step {step.seq} while an exchange of the last one was open")
        self._expected = tuple(self._layout.share(rows) for rows in step.tokens)
        self._last = [-1] * len(step.tokens)
        self.step = step

    @property
    def blocked(self) -> bool:
        """Whether reading on has to wait for an announcement or for a buffer."""
        return self._blocked_since is not None

    @property
    def answering(self) -> bool:
        """Whether a part of an answer has not left yet."""
        return bool(self._unsent)

    def interest(self) -> int:
        """The poll events of the data connection that can be used now."""
        wanted = 0 if self._blocked_since is not None else select.POLLIN
        return wanted | select.POLLOUT if self._unsent else wanted

    def blocked_s(self) -> float:
        """Seconds that the next request has waited for its announcement."""
        return 0.0 if self._blocked_since is None or self._head is not None else time.monotonic() - self._blocked_since

    def midway(self) -> bool:
        """Whether it owes another request of its step."""
        last_layer = self._shape.layers - 1
        return any(rows and last < last_layer for rows, last in zip(self._expected, self._last, strict=False))

    def underway(self) -> list[Underway]:
        """The stages in which it owes its next request."""
        return [
            Underway(self.rank, stage, last)
            for stage, (rows, last) in enumerate(zip(self._expected, self._last, strict=False))
            if rows and stage not in self.ready
        ]

    def advance(self) -> None:
        """Reads what is there, up to the end of one request; PeerLost or FrameError when the peer is to be
        dropped.
        """
        if self._head is None:
            if self._rest and not self._read():
                return
            head = tcp_frame.decode(self._raw_head)
            if not self._announced(head):
                self._blocked_since = self._blocked_since or time.monotonic()
                return
            self._check(head)
            self._head = head
        if not self._landing:
            if self._head.stage in self.lent:
                self._blocked_since = self._blocked_since or time.monotonic()
                return
            self._rest = self._room(self._head)
            self._landing = True
        self._blocked_since = None
        if self._read():
            self._land(self._head)

    def _announced(self, head: Head) -> bool:
        """Steps and requests travel on two connections, so a request may be here before its announcement."""
        if self.step is None or head.seq > self.step.seq:
            self.channel.drain()
        return self.step is not None and head.seq <= self.step.seq

    def _check(self, head: Head) -> None:
        step = self.step
        assert step is not None
        where = f"a request for layer {head.layer} stage {head.stage} of step {head.seq}"
        if head.way != Way.REQUEST:
            raise FrameError(f"it sent an answer, expected a request of step {step.seq}")
        if head.seq < step.seq:
            raise FrameError(f"it sent {where} late, after it announced step {step.seq}")
        if head.stage >= len(self._expected) or head.layer >= self._shape.layers:
            raise FrameError(
                f"it sent {where}, expected stages below {len(self._expected)} and layers below {self._shape.layers}"
            )
        if head.rows != self._expected[head.stage] or not head.rows:
            raise FrameError(f"it sent {where} with {head.rows} rows, announced were {self._expected[head.stage]}")
        if head.layer <= self._last[head.stage] or head.stage in self.ready:
            raise FrameError(f"it sent {where} twice or out of order, the last was layer {self._last[head.stage]}")
        if head.router and (head.router not in DTYPE_NAMES or not self._shape.router):
            raise FrameError(
                f"it sent {where} with logits of kind {head.router}, expected "
                f"{'a known kind' if self._shape.router else 'none'}"
            )

    def _room(self, head: Head) -> list[memoryview]:
        buffer = self.buffers[head.stage]
        views = [buffer.hidden_bytes[: head.rows * self._shape.row_bytes]]
        if head.router:
            views.append(buffer.router_bytes[: head.rows * router_row_bytes(self._shape, head.router)])
        return views

    def _read(self) -> bool:
        """Whether everything in `_rest` has been filled."""
        while self._rest:
            try:
                count = self.data.recvmsg_into(self._rest, 0, NO_WAIT)[0]
            except BlockingIOError:
                return False
            except OSError as error:
                raise PeerLost(f"its data connection broke: {error.strerror or error}") from error
            if not count:
                raise PeerLost("it closed the connection, as a process that ends does")
            self._rest = after(self._rest, count)
        return True

    def _land(self, head: Head) -> None:
        ready = Ready(self.rank, head.stage, head.layer, self._last[head.stage], head.router, time.monotonic())
        self.rows[head.stage] = head.rows
        self._last[head.stage] = head.layer
        self.ready[head.stage] = ready
        self._head, self._landing, self._rest = None, False, [self._raw_head]

    def reply(self, head: Head, rows: memoryview) -> None:
        """Sends an answer; what a slow peer does not take is copied and follows with `push`."""
        views = [memoryview(head.encode()), rows]
        if self._unsent:
            self._unsent += b"".join(views)
            return
        poll: select.poll | None = None
        while views:
            try:
                sent = self.data.sendmsg(views, (), SEND_NOW)
            except BlockingIOError:
                if poll is None:
                    poll = select.poll()
                    poll.register(self.data, select.POLLOUT)
                if not poll.poll(PROGRESS_MS):
                    self._unsent += b"".join(views)
                    return
                continue
            except OSError as error:
                raise PeerLost(f"its data connection broke: {error.strerror or error}") from error
            views = after(views, sent)

    def push(self) -> None:
        """Goes on with an answer that did not leave at once."""
        try:
            sent = self.data.send(self._unsent, SEND_NOW)
        except BlockingIOError:
            return
        except OSError as error:
            raise PeerLost(f"its data connection broke: {error.strerror or error}") from error
        del self._unsent[:sent]

    def hang_up(self) -> None:
        """Ends both connections for every thread; `free` gives the descriptors back."""
        self.dropped = True
        for sock in (self.channel.sock, self.data):
            with contextlib.suppress(OSError):  # not connected any more, which is what is wanted
                sock.shutdown(socket.SHUT_RDWR)

    def free(self) -> None:
        """Closes the sockets; only on the thread that reads them."""
        self.channel.sock.close()
        self.data.close()
