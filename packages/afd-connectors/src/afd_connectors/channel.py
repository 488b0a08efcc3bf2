"""One peer's control connection: steps and heartbeats in, steps and heartbeats out."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable

from afd_connectors import control
from afd_connectors.control import Kind, Logits
from afd_connectors.errors import ConnectorError, FrameError, PeerLost
from afd_connectors.event import Event
from afd_connectors.step import Step

HEARTBEAT_S = 1.0
BYE = "it said goodbye"
MOST_READS = 4  # of one drain: a peer that writes without end must not hold the thread that serves all
# Plain numbers: combining the flags of the standard library, which are enums, costs microseconds each time.
NO_WAIT = int(socket.MSG_DONTWAIT)
SEND_NOW = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_RDHUP = getattr(select, "POLLRDHUP", 0)
_GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL | _RDHUP


class Channel:
    """A connected, agreed control socket; any thread may drain it or send on it.

    seen: time.monotonic() of the peer's last sign of life; event: the peer's last known event;
    lost: why the peer is gone, None while it is not; offended: it broke the protocol.
    """

    def __init__(
        self, sock: socket.socket, on_step: Callable[[Step], None] | None = None,
        on_logits: Callable[[Logits], None] | None = None,
    ) -> None:  # fmt: skip
        self.sock = sock
        self.seen = time.monotonic()
        self.event: Event | None = None
        self.lost: str | None = None
        self.offended = False
        self._on_step, self._on_logits = on_step, on_logits
        self._parser = control.Parser()
        self._reading = threading.Lock()
        self._writing = threading.Lock()

    def drain(self) -> None:
        """Takes in what has arrived, without waiting; FrameError when the peer breaks the protocol."""
        with self._reading:
            for _ in range(MOST_READS):
                if self.lost is not None:
                    return
                try:
                    data = self.sock.recv(4096, NO_WAIT)
                except BlockingIOError:
                    return
                except OSError as error:
                    self.lost = f"its connection broke: {error.strerror or error}"
                    return
                if not data:
                    self.lost = "it closed the connection, as a process that ends does"
                    return
                self.seen = time.monotonic()
                try:
                    for frame in self._parser.feed(data):
                        self._take(frame)
                except FrameError as error:
                    self.lost, self.offended = error.message, True
                    raise

    def _take(self, frame: control.Frame) -> None:
        if frame.kind is Kind.HEARTBEAT:
            self.event = Event.decode(frame.body, self.seen)
        elif frame.kind is Kind.BYE:
            self.lost = BYE
        elif frame.kind is Kind.LOGITS:
            if self._on_logits is None:
                raise FrameError("of a layer's router logits nothing is told here, found a frame that does.")
            self._on_logits(Logits.decode(frame.body))
        elif self._on_step is None:
            raise FrameError("only attention ranks announce steps, found one from an FFN rank.")
        else:
            self._on_step(Step.decode(frame.body))

    def announce(self, step: Step) -> None:
        """Sends a step; PeerLost when the connection does not take it."""
        self._send(control.encode(Kind.STEP, step.encode()))

    def tell(self, logits: Logits) -> None:
        """Says of a layer what logits come with its rows; PeerLost when the connection does not take it."""
        self._send(control.encode(Kind.LOGITS, logits.encode()))

    def heartbeat(self, event: Event) -> None:
        """Sends a sign of life; PeerLost when the connection broke."""
        self._send(control.encode(Kind.HEARTBEAT, event.encode(time.monotonic())))

    def bye(self) -> None:
        """Tells the peer that the end of this connection is meant; silent when it is gone already."""
        try:
            self._send(control.encode(Kind.BYE, b""))
        except PeerLost:
            return

    def _send(self, frame: bytes) -> None:
        with self._writing:
            try:
                sent = self.sock.send(frame, SEND_NOW)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                raise PeerLost(f"its control connection broke: {error.strerror or error}") from error
        # Frames are tiny: a socket that takes none has a peer that has read nothing for a very long time.
        if sent != len(frame):
            raise PeerLost("it has not read its control connection for so long that no frame fits any more")

    def last_words(self, reason: str) -> str:
        """Why the peer is gone: its goodbye where it is still unread here, `reason` otherwise."""
        try:
            self.drain()
        except ConnectorError:
            return reason
        return BYE if self.lost == BYE else reason

    def gone(self) -> bool:
        """Whether the peer's end is closed, even while unread bytes are left here."""
        if self.lost is not None:
            return True
        poll = select.poll()
        poll.register(self.sock, _RDHUP)
        return any(events & _GONE for _, events in poll.poll(0))

    def silent_s(self) -> float:
        """Seconds since the peer's last sign of life; call drain first."""
        return time.monotonic() - self.seen
