"""Requests and answers of one attention rank over TCP: requests land in memory of their own, piece by piece."""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Sequence

from afd_connectors.channel import NO_WAIT, SEND_NOW
from afd_connectors.errors import FrameError, PeerLost
from afd_connectors.layout import Layout
from afd_connectors.listener import Arrival
from afd_connectors.shape import Shape
from afd_connectors.transports.paired import head as frame
from afd_connectors.transports.paired.buffers import Buffer, router_row_bytes
from afd_connectors.transports.paired.head import HEAD_BYTES, Head
from afd_connectors.transports.paired.peer import Peer
from afd_connectors.transports.tcp_line import after

PROGRESS_MS = 5  # a peer that takes nothing for this long is answered in the background, not waited for


class StreamPeer(Peer):
    """See Peer; never waits, except PROGRESS_MS for an answer to leave."""

    def __init__(
        self, arrival: Arrival, layout: Layout, shape: Shape, buffers: Sequence[Buffer], lent: set[int]
    ) -> None:
        super().__init__(arrival, layout, shape, buffers, lent)
        self._raw_head = memoryview(bytearray(HEAD_BYTES))
        self._rest = [self._raw_head]
        self._head: Head | None = None
        self._landing = False
        self._blocked = False
        self._unsent: deque[tuple[int, memoryview]] = deque()  # stage and rest of each answer

    @property
    def blocked(self) -> bool:
        """See Peer."""
        return self._blocked

    @property
    def answering(self) -> bool:
        """See Peer."""
        return bool(self._unsent)

    def interest(self) -> int:
        """See Peer."""
        wanted = 0 if self._blocked else select.POLLIN
        return wanted | select.POLLOUT if self._unsent else wanted

    def hear(self) -> None:
        """See Peer; reads what is there, up to the end of one request."""
        self.advance()

    def advance(self) -> None:
        """See Peer."""
        if self._head is None:
            if self._rest and not self._read():
                return
            head = frame.decode(self._raw_head)
            if not self._accept(head):
                self._blocked = True
                return
            if any(stage == head.stage for stage, _ in self._unsent):  # or unread answers would fill the memory
                raise FrameError(f"it sent a request of stage {head.stage} before it read the answer to the last one")
            self._head = head
        if not self._landing:
            if self._head.stage in self.lent:
                self._blocked = True
                return
            self._rest = self._room(self._head)
            self._landing = True
        self._blocked = False
        if self._read():
            self._land(self._head)
            self._head, self._landing, self._rest = None, False, [self._raw_head]

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

    def reply(self, stage: int, head: bytes, rows: memoryview) -> None:
        """See Peer; what a slow peer does not take is copied and follows with `push`."""
        views = [memoryview(head), rows]
        if self._unsent:
            self._leave(stage, views)
            return
        until = time.monotonic() + 4 * PROGRESS_MS / 1000
        poll: select.poll | None = None
        while views:
            try:
                sent = self.data.sendmsg(views, (), SEND_NOW)
            except BlockingIOError:
                if poll is None:
                    poll = select.poll()
                    poll.register(self.data, select.POLLOUT)
                # A peer that takes a little again and again holds this thread no longer than one that takes nothing.
                if time.monotonic() > until or not poll.poll(PROGRESS_MS):
                    self._leave(stage, views)
                    return
                continue
            except OSError as error:
                raise PeerLost(f"its data connection broke: {error.strerror or error}") from error
            views = after(views, sent)

    def _leave(self, stage: int, views: list[memoryview]) -> None:
        self._unsent.append((stage, memoryview(b"".join(views))))

    def push(self) -> None:
        """See Peer."""
        if not self._unsent:
            return
        stage, rest = self._unsent[0]
        try:
            sent = self.data.send(rest, SEND_NOW)
        except BlockingIOError:
            return
        except OSError as error:
            raise PeerLost(f"its data connection broke: {error.strerror or error}") from error
        if sent == len(rest):
            self._unsent.popleft()
        else:
            self._unsent[0] = (stage, rest[sent:])


class StreamSeats:
    """Makes the peers of an FFN rank; the memory of a rank is used again by its successor."""

    def __init__(self, layout: Layout, shape: Shape) -> None:
        self._layout, self._shape = layout, shape
        self._buffers = {rank: [Buffer(shape, shape.tokens) for _ in range(shape.stages)] for rank in layout.peers}
        self._lent: dict[int, set[int]] = {rank: set() for rank in layout.peers}

    def __call__(self, arrival: Arrival) -> StreamPeer:
        """A seat for one arrival."""
        return StreamPeer(arrival, self._layout, self._shape, self._buffers[arrival.rank], self._lent[arrival.rank])
