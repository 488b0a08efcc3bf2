"""The attention end: exchanges that are retried against a restarted or standby FFN rank until they succeed."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from afd_connectors.checks import check_begin, check_recv, check_send, router_code
from afd_connectors.deadline import Deadline
from afd_connectors.errors import ConnectorError, DeadlineExceeded, FrameError, HandshakeRefused, PeerLost
from afd_connectors.event import RECEIVED, SENT, Event, Phase
from afd_connectors.facts import Facts
from afd_connectors.handshake import Identity
from afd_connectors.layout import Layout
from afd_connectors.place import E, Place
from afd_connectors.ports import AttentionPort, PeerStatus
from afd_connectors.pulse import Pulse
from afd_connectors.settings import Settings
from afd_connectors.shape import Shape
from afd_connectors.step import Step
from afd_connectors.transports.paired.buffers import flat
from afd_connectors.transports.paired.lines import Lines, MakeLine, give_up, usable
from afd_connectors.transports.paired.pending import Pending

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("afd.connectors")
FAILURES = (PeerLost, DeadlineExceeded, FrameError)


class PairedAttentionPort(AttentionPort):
    """See AttentionPort; calls may come from several threads, one at a time is served.

    transport: how errors call it; make_line: see Lines.
    """

    def __init__(
        self, transport: str, layout: Layout, shape: Shape, facts: Facts, settings: Settings, make_line: MakeLine
    ) -> None:
        self._layout, self._shape, self._settings = layout, shape, settings
        self._place = Place(transport, layout, Event(Phase.OPENED, time.monotonic()))
        self._stages = [Pending(layout, shape) for _ in range(shape.stages)]
        self._layers: dict[int, int] = {}  # of the open exchanges, by stage
        self._step: Step | None = None
        self._using = threading.RLock()
        self._lines = Lines(Identity(layout, facts, settings.secret), settings, self._stages, make_line)
        try:
            self._lines.join()
        except (HandshakeRefused, DeadlineExceeded) as error:
            raise self._error(
                type(error), error.message, layout.peers[0] if error.peer is None else error.peer
            ) from error
        self._pulse = Pulse(lambda: self._lines.beat(self._place.event))

    def begin(self, step: Step) -> None:
        """See AttentionPort."""
        with self._using:
            self._open_or_raise()
            check_begin(step, self._step, self._shape)
            if self._layers:  # the last step was given up: its answers must not be taken for this one's
                for line in self._lines:
                    give_up(line, PeerLost(f"step {step.seq} began before the last one was answered"))
                self._layers.clear()
            self._step = step
            for line in self._lines:
                try:
                    usable(line).announce(step)
                except FAILURES as error:
                    give_up(line, error)
            self._place.event = Event(Phase.ANNOUNCED, time.monotonic(), step.seq)

    def send(self, step: Step, layer: int, hidden: Tensor, router: Tensor | None = None, *, stage: int = 0) -> None:
        """See AttentionPort."""
        self._using.acquire()  # a with statement takes a tenth of a microsecond more
        try:
            self._open_or_raise()
            check_send(step, self._step, layer, stage, hidden, router, self._shape, self._layers)
            pending = self._stages[stage]
            hidden, rows = flat(hidden)
            logits, code = None, 0
            if router is not None:
                code = router_code(router)
                router, logits = flat(router)
            pending.set(step.seq, layer, stage, step.tokens[stage], code)
            self._layers[stage] = layer
            held = True
            for peer in pending.blocks:
                line = self._lines[peer]
                try:
                    usable(line).request(*pending.part(peer, rows, logits))
                    held = held and line.holds
                except FAILURES as error:
                    give_up(line, error)
                    held = False
            # What is left to do comes after sending, so that it costs no latency.
            self._place.moment = (SENT, time.monotonic(), step.seq, layer, stage)
            if not held:
                pending.keep(rows, logits)
        finally:
            self._using.release()

    def recv(self, step: Step, layer: int, out: Tensor, *, stage: int = 0) -> None:
        """See AttentionPort."""
        self._using.acquire()  # see send
        try:
            self._open_or_raise()
            check_recv(step, layer, stage, out, self._shape, self._layers)
            target, rows = flat(out)
            pending = self._stages[stage]
            for peer, (start, stop) in pending.blocks.items():
                self._collect(peer, step, stage, rows[start * pending.row_bytes : stop * pending.row_bytes])
                pending.answered.add(peer)
            if target is not out:
                out.copy_(target)
            del self._layers[stage]
            self._place.moment = (RECEIVED, time.monotonic(), step.seq, layer, stage)
        finally:
            self._using.release()

    def peers(self) -> tuple[PeerStatus, ...]:
        """See Port."""
        return self._lines.statuses()

    def close(self) -> None:
        """See Port."""
        if self._lines.closed.is_set():
            return
        self._lines.closed.set()
        self._pulse.close()
        self._lines.say_goodbye()
        if self._using.acquire(timeout=5.0):
            self._lines.free()
            self._using.release()

    def _collect(self, peer: int, step: Step, stage: int, rows: memoryview) -> None:
        """One FFN rank's part of an answer, through as many connections as it takes."""
        recovery: Deadline | None = None
        while True:
            line = self._lines[peer]
            try:
                return usable(line).answer(stage, rows)
            except FAILURES as error:
                give_up(line, error)
                self._open_or_raise()
                if recovery is None:
                    recovery = Deadline(self._settings.recovery_timeout_s)
                    told = self._error(type(error), error.message, peer, stage)
                    log.warning("%s Reconnecting for up to %g s.", told, recovery.seconds)
                self._reconnect(peer, step, stage, recovery)

    def _reconnect(self, peer: int, step: Step, stage: int, recovery: Deadline) -> None:
        """A new line to `peer` with the step announced and all its open exchanges sent again."""
        died, when = self._lines[peer], time.strftime("%H:%M:%S", time.localtime(time.time() - recovery.spent()))
        try:
            line = self._lines.replace(peer, recovery)
        except HandshakeRefused as refused:
            raise self._error(HandshakeRefused, refused.message, peer, stage) from refused
        except DeadlineExceeded as error:
            first = died.broken or error
            why = f"lost at {when} because {first.message.rstrip('.')}; {error.message}"
            raise self._error(type(first), why, peer, stage) from error
        except PeerLost:
            self._open_or_raise()
            raise
        if line is None:
            return self._open_or_raise()
        try:
            line.announce(step)
            for open_stage in self._layers:
                pending = self._stages[open_stage]
                if peer in pending.blocks and peer not in pending.answered:
                    line.request(*pending.kept_part(peer))
        except FAILURES as error:
            give_up(line, error)
            return None
        log.info("attention rank %d reached FFN rank %d after %.1f s", self._layout.rank, peer, recovery.spent())
        return None

    def _error(self, kind: type[E], message: str, peer: int, stage: int | None = None) -> E:
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

    def _open_or_raise(self) -> None:
        if self._lines.closed.is_set():
            who = f"{self._place.transport} attention rank {self._layout.rank}"
            raise ConnectorError(f"{who} is closed; open it again to use it.")
