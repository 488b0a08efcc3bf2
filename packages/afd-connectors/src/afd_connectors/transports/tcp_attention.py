"""The attention end of tcp: exchanges that are retried against a restarted FFN rank until they succeed."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from afd_connectors.address import ffn_address, shown
from afd_connectors.checks import check_begin, check_recv, check_send, router_code
from afd_connectors.deadline import Deadline
from afd_connectors.dial import dial
from afd_connectors.errors import ConnectorError, DeadlineExceeded, FrameError, HandshakeRefused, PeerLost
from afd_connectors.event import Event, Phase
from afd_connectors.facts import Facts
from afd_connectors.handshake import Identity
from afd_connectors.layout import Layout
from afd_connectors.place import E, Place
from afd_connectors.ports import AttentionPort, PeerStatus
from afd_connectors.pulse import Pulse
from afd_connectors.settings import Settings
from afd_connectors.shape import Shape
from afd_connectors.step import Step
from afd_connectors.transports.tcp_buffers import flat, raw
from afd_connectors.transports.tcp_line import Line
from afd_connectors.transports.tcp_pending import Pending
from afd_connectors.waiting import Waiting

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("afd.connectors")
FAILURES = (PeerLost, DeadlineExceeded, FrameError)
RETRY_S = 0.1


class TcpAttentionPort(AttentionPort):
    """See AttentionPort; calls may come from several threads, one at a time is served."""

    def __init__(self, layout: Layout, shape: Shape, facts: Facts, settings: Settings) -> None:
        self._layout, self._shape, self._settings = layout, shape, settings
        self._identity = Identity(layout, facts, settings.secret)
        self._place = Place("tcp", layout, Event(Phase.OPENED, time.monotonic()))
        self._addresses = {peer: ffn_address(settings, peer, layout.num_ffn) for peer in layout.peers}
        self._stages = [Pending(layout, shape) for _ in range(shape.stages)]
        self._layers: dict[int, int] = {}
        self._lines: dict[int, Line] = {}
        self._step: Step | None = None
        self._using = threading.RLock()
        self._closed = threading.Event()
        deadline = Deadline(settings.join_timeout_s)
        try:
            for peer in layout.peers:
                self._lines[peer] = self._connect(peer, deadline)
        except ConnectorError:
            for line in self._lines.values():
                line.hang_up()
                line.free()
            raise
        self._pulse = Pulse(self._beat)

    def begin(self, step: Step) -> None:
        """See AttentionPort."""
        with self._using:
            self._open_or_raise()
            check_begin(step, self._step, self._shape)
            if self._layers:  # the last step was given up: its answers must not be taken for this one's
                for line in self._lines.values():
                    self._break(line, PeerLost(f"step {step.seq} began before the last one was answered"))
                self._layers.clear()
            self._step = step
            for line in self._lines.values():
                try:
                    self._usable(line).channel.announce(step)
                except FAILURES as error:
                    self._break(line, error)
            self._place.event = Event(Phase.ANNOUNCED, time.monotonic(), step.seq)

    def send(self, step: Step, layer: int, hidden: Tensor, router: Tensor | None = None, *, stage: int = 0) -> None:
        """See AttentionPort."""
        with self._using:
            self._open_or_raise()
            check_send(step, self._step, layer, stage, hidden, router, self._shape, self._layers)
            pending = self._stages[stage]
            rows = flat(hidden)
            logits = None if router is None else flat(router)
            pending.set(step.seq, layer, stage, rows.shape[0], router_code(router))
            views = (raw(rows), None if logits is None else raw(logits))
            self._layers[stage] = layer
            self._place.event = Event(Phase.SENT, time.monotonic(), step.seq, layer, stage)
            for peer in pending.blocks:
                line = self._lines[peer]
                try:
                    self._usable(line).request(*pending.part(peer, *views))
                except FAILURES as error:
                    self._break(line, error)
            pending.keep(*views)  # after sending, so that the copy costs no latency

    def recv(self, step: Step, layer: int, out: Tensor, *, stage: int = 0) -> None:
        """See AttentionPort."""
        with self._using:
            self._open_or_raise()
            check_recv(step, layer, stage, out, self._shape, self._layers)
            target = flat(out)
            rows = raw(target)
            pending = self._stages[stage]
            for peer, (start, stop) in pending.blocks.items():
                self._collect(peer, step, stage, rows[start * pending.row_bytes : stop * pending.row_bytes])
                pending.answered.add(peer)
            if target is not out:
                out.copy_(target)
            del self._layers[stage]
            self._place.event = Event(Phase.RECEIVED, time.monotonic(), step.seq, layer, stage)

    def peers(self) -> tuple[PeerStatus, ...]:
        """See Port."""
        return tuple(
            PeerStatus(
                peer,
                "connected" if line.broken is None and line.channel.lost is None else "lost",
                line.since,
                shown(self._addresses[peer]),
                line.channel.event,
            )
            for peer, line in sorted(self._lines.items())
        )

    def close(self) -> None:
        """See Port."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._pulse.close()
        lines = list(self._lines.values())
        for line in lines:
            line.channel.bye()
            line.hang_up()  # wakes a thread that waits in recv
        if self._using.acquire(timeout=5.0):
            for line in self._lines.values():
                line.hang_up()
                line.free()
            self._using.release()

    def _collect(self, peer: int, step: Step, stage: int, rows: memoryview) -> None:
        """One FFN rank's part of an answer, through as many connections as it takes."""
        recovery: Deadline | None = None
        while True:
            line = self._lines[peer]
            try:
                return self._usable(line).answer(stage, rows)
            except FAILURES as error:
                self._break(line, error)
                self._open_or_raise()
                if recovery is None:
                    recovery = Deadline(self._settings.recovery_timeout_s)
                    told = self._error(type(error), error.message, peer, stage)
                    log.warning("%s Reconnecting for up to %g s.", told, recovery.seconds)
                self._reconnect(peer, step, stage, recovery)

    def _reconnect(self, peer: int, step: Step, stage: int, recovery: Deadline) -> None:
        """A new line to `peer` with the step announced and all its open exchanges sent again."""
        died, when = (
            self._lines[peer],
            time.strftime("%H:%M:%S", time.localtime(time.time() - recovery.spent())),
        )
        try:
            line = self._connect(peer, recovery, stage)
        except DeadlineExceeded as error:
            first = died.broken or error
            raise self._error(
                type(first),
                f"lost at {when} because {first.message.rstrip('.')}; {error.message}",
                peer,
                stage,
            ) from error
        self._lines[peer] = line
        died.free()
        self._open_or_raise()  # a close that came in between did not know of the new line
        try:
            line.channel.announce(step)
            for open_stage in self._layers:
                pending = self._stages[open_stage]
                if peer in pending.blocks and peer not in pending.answered:
                    line.request(*pending.kept_part(peer))
        except FAILURES as error:
            self._break(line, error)
            return
        log.info("attention rank %d reached FFN rank %d after %.1f s", self._layout.rank, peer, recovery.spent())

    def _connect(self, peer: int, deadline: Deadline, stage: int | None = None) -> Line:
        address = self._addresses[peer]
        waiting = Waiting(log, self._layout.rank, peer, shown(address), deadline)
        while not deadline.passed:
            try:
                dialled = dial(address, self._identity, peer, deadline)
                return Line(peer, dialled, self._stages, self._settings.timeout_s)
            except HandshakeRefused as refused:
                if refused.final:
                    raise self._error(HandshakeRefused, refused.message, peer, stage) from refused
                waiting.reason = refused.message
            except ConnectorError as error:
                waiting.reason = error.message
            waiting.tell()
            self._closed.wait(deadline.slice(RETRY_S))
            self._open_or_raise()
        raise self._error(DeadlineExceeded, waiting.verdict(), peer, stage)

    def _usable(self, line: Line) -> Line:
        if line.broken is not None:
            raise line.broken
        if line.channel.lost is not None:
            raise PeerLost(line.channel.lost)
        return line

    def _break(self, line: Line, error: ConnectorError) -> None:
        """From here on the line only waits to be replaced; the FFN rank sees at once that it ended."""
        if line.broken is None:
            line.broken, line.since = error, time.monotonic()
            line.hang_up()

    def _error(self, kind: type[E], message: str, peer: int, stage: int | None) -> E:
        line = self._lines.get(peer)
        return self._place.error(
            kind,
            message,
            peer,
            None if line is None else line.channel.event,
            step=None if self._step is None else self._step.seq,
            layer=None if stage is None else self._layers.get(stage),
            stage=stage,
        )

    def _beat(self) -> None:
        """On the pulse's thread: shows life and notices a peer that went away between steps."""
        for line in list(self._lines.values()):
            if line.broken is not None or line.channel.lost is not None:
                continue
            try:
                line.channel.drain()
                line.channel.heartbeat(self._place.event)
            except ConnectorError as error:
                line.channel.lost = error.message
            if line.channel.lost is not None and not self._closed.is_set():
                line.since = time.monotonic()
                log.warning(
                    "attention rank %d lost FFN rank %d: %s; it reconnects with the next exchange",
                    self._layout.rank,
                    line.peer,
                    line.channel.lost,
                )

    def _open_or_raise(self) -> None:
        if self._closed.is_set():
            raise ConnectorError(f"tcp attention rank {self._layout.rank} is closed; open it again to use it.")
