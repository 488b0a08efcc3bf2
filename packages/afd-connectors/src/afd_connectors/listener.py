"""The FFN side's front door: accepts connections, agrees with each, lets no stranger disturb the others."""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from afd_connectors.address import Address, fault, shown
from afd_connectors.agreed import Agreed, hang_up
from afd_connectors.deadline import Deadline
from afd_connectors.errors import ConnectorError, one_line
from afd_connectors.greetings import Greetings
from afd_connectors.handshake import (
    HELLO_S,
    Identity,
    Message,
    answer_attention,
    recv_message,
    send_message,
    text,
)

log = logging.getLogger("afd.connectors")
BACKLOG = 1024  # a caller that finds it full tries again only after a second, whatever its own deadline
PAUSE_S = 0.5
COMPLAIN_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """An attention rank that has agreed and brought both of its connections."""

    rank: int
    control: socket.socket
    data: socket.socket
    address: str


class Listener:
    """Listens on `address` until closed.

    admit: why a rank is not let in just now, None when it is; welcome: takes over an arrival, or says why
    not. Both are called on threads of the listener. ConnectorError when the address cannot be had.
    """

    def __init__(
        self,
        address: Address,
        identity: Identity,
        admit: Callable[[int], str | None],
        welcome: Callable[[Arrival], str | None],
    ) -> None:
        self._identity, self._admit, self._welcome = identity, admit, welcome
        self._agreed = Agreed()
        self._greetings = Greetings()
        self._lock = threading.Lock()
        self._closed = False
        self._complain_at = 0.0
        self._said: dict[str, float] = {}
        self._who = f"FFN rank {identity.layout.rank}"
        self._socket = self._listen(address)
        self._waker, self._wakes = socket.socketpair()
        self._thread = threading.Thread(target=self._accept_all, name="afd-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops listening, drops connections that have not become arrivals, ends all threads."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._waker.close()
        self._agreed.close()
        self._greetings.close(HELLO_S)
        self._thread.join(HELLO_S)
        self._wakes.close()

    def _listen(self, address: Address) -> socket.socket:
        try:
            family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
            sock = socket.create_server(address, family=family, backlog=BACKLOG)
        except (OSError, UnicodeError) as error:
            raise ConnectorError(
                f"{self._who} cannot listen at {shown(address)}: {fault(error)}; "
                "choose another host or port, or stop the process that holds it."
            ) from error
        sock.setblocking(False)
        bound = str(sock.getsockname()[0])
        if self._identity.secret is None and not bound.startswith("127.") and bound != "::1":
            log.warning("%s listens at %s without a secret; set one so that strangers are refused", self._who, bound)
        return sock

    def _accept_all(self) -> None:
        with selectors.DefaultSelector() as selector, self._socket:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._wakes, selectors.EVENT_READ)
            while not self._closed:
                for key, _ in selector.select(1.0):
                    if key.fileobj is self._socket:
                        self._accept_one()
                self._agreed.forget_late()

    def _accept_one(self) -> None:
        try:
            sock, peer = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):  # the caller hung up first
            return
        except OSError as error:  # such as no descriptors left; the caller still waits, so at once it fails again
            self._pause(error.strerror or str(error))
            return
        thread = threading.Thread(target=self._greet, args=(sock, shown(peer)), name="afd-greeting", daemon=True)
        try:
            if not self._greetings.begin(sock, thread):
                hang_up(sock)
        except RuntimeError as error:  # no more threads
            hang_up(sock)
            self._pause(str(error))

    def _pause(self, found: str) -> None:
        """Waits until the process may have freed what it lacks, or close is called; complains now and then."""
        if time.monotonic() >= self._complain_at:
            self._complain_at = time.monotonic() + COMPLAIN_EVERY_S
            log.warning("%s could not accept a connection: %s; it keeps trying", self._who, found)
        self._wakes.settimeout(PAUSE_S)
        with contextlib.suppress(TimeoutError):
            self._wakes.recv(1)  # nothing is ever sent: it ends early only by close

    def _greet(self, sock: socket.socket, address: str) -> None:
        """One connection from accept to its place, on its own thread and within HELLO_S seconds."""
        deadline = Deadline(HELLO_S)
        keep = False
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            first = recv_message(sock, deadline)
            if first.get("say") == "attach":
                keep = self._attach(sock, address, first, deadline)
            else:
                keep = self._agree(sock, address, first, deadline)
        except ConnectorError as error:
            if not self._closed:
                log.warning("%s dropped a connection from %s: %s", self._who, address, error)
        except Exception as error:  # noqa: BLE001  # whatever one stranger causes, it costs only its connection
            found = f"{type(error).__name__}: {one_line(str(error))}"
            log.error("%s dropped a connection from %s: unexpected %s", self._who, address, found)
        finally:
            self._greetings.end(sock)
            if not keep:
                hang_up(sock)

    def _agree(self, sock: socket.socket, address: str, hello: Message, deadline: Deadline) -> bool:
        session, reason = answer_attention(sock, self._identity, hello, deadline)
        final = reason is not None
        reason = reason or self._admit(session.rank)
        if reason is not None:
            log.warning("%s refused attention rank %d from %s: %s", self._who, session.rank, address, reason)
            send_message(sock, {"say": "verdict", "accepted": False, "final": final, "reason": reason}, deadline)
            return False
        if not self._agreed.put(session, sock):
            return False
        send_message(sock, {"say": "verdict", "accepted": True, "final": False, "reason": ""}, deadline)
        return True

    def _attach(self, sock: socket.socket, address: str, message: Message, deadline: Deadline) -> bool:
        expected = self._agreed.take(text(message, "token"), text(message, "proof"))
        rank, keep = expected.session.rank, False
        try:
            send_message(sock, {"say": "ready"}, deadline)
            for agreed in (expected.control, sock):
                agreed.settimeout(None)
            reason = self._welcome(Arrival(rank, expected.control, sock, address))
            keep = reason is None
        except ConnectorError as error:
            if not self._closed and self._new(f"{rank}: {error}"):
                log.warning("%s cannot serve attention rank %d from %s: %s", self._who, rank, address, error)
            return False
        finally:
            if not keep:
                hang_up(expected.control)
        if reason is not None:
            log.warning("%s refused attention rank %d from %s: %s", self._who, rank, address, reason)
        return keep

    def _new(self, reason: str) -> bool:
        """Whether a reason has not come up lately: a rank that cannot be served tries again and again."""
        now = time.monotonic()
        with self._lock:
            self._said = {said: at for said, at in self._said.items() if now - at < COMPLAIN_EVERY_S}
            known = reason in self._said
            self._said[reason] = now
        return not known
