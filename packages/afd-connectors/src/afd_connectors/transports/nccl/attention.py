"""The attention end: announces steps on the CPU channel and enqueues rows on the caller's stream."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from afd_connectors.address import ffn_address, shown
from afd_connectors.checks import check_begin, check_recv, check_send
from afd_connectors.deadline import Deadline
from afd_connectors.errors import ConnectorError, DeadlineExceeded, HandshakeRefused, PeerLost
from afd_connectors.event import Event, Phase
from afd_connectors.facts import Facts
from afd_connectors.handshake import Identity
from afd_connectors.layout import Layout
from afd_connectors.place import E, Place
from afd_connectors.ports import PeerStatus
from afd_connectors.pulse import Pulse
from afd_connectors.settings import Settings
from afd_connectors.shape import Shape
from afd_connectors.step import Mode, Step
from afd_connectors.stepped import DeviceAttentionPort
from afd_connectors.transports.nccl.device import Device
from afd_connectors.transports.nccl.library import Library, grouped
from afd_connectors.transports.nccl.line import Line, connect
from afd_connectors.transports.nccl.link import Issuing
from afd_connectors.transports.nccl.watch import Watch
from afd_connectors.waiting import Waiting

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("afd.connectors")
RETRY_S = 0.1


class NcclAttentionPort(DeviceAttentionPort):
    """See DeviceAttentionPort. A step that was under way when a peer was lost cannot be repeated.

    The next step reconnects, unless graphs were captured: they hold the communicators of the lost connection.
    """

    def __init__(
        self, layout: Layout, shape: Shape, facts: Facts, settings: Settings, library: Library, device: Device
    ) -> None:
        self._layout, self._shape, self._settings = layout, shape, settings
        self._identity = Identity(layout, facts, settings.secret)
        self._issuing = Issuing(library, device)
        self._place = Place("nccl-p2p", layout, Event(Phase.OPENED, time.monotonic()))
        self._addresses = {peer: ffn_address(settings, peer, layout.num_ffn) for peer in layout.peers}
        self._split = lru_cache(maxsize=1024)(layout.split)
        self._layers: dict[int, int] = {}
        self._lines: dict[int, Line] = {}
        self._step: Step | None = None
        self._captured = False
        self._closed = threading.Event()
        deadline = Deadline(settings.join_timeout_s)
        try:
            for peer in layout.peers:
                self._lines[peer] = self._connect(peer, deadline)
        except ConnectorError:
            self._free()
            raise
        self._watch = Watch(lambda: [line.channel for line in self._all()], self._sweep)
        self._pulse = Pulse(lambda: self._sweep(self._place.event))

    def begin(self, step: Step) -> None:
        """See AttentionPort; ConnectorError when an FFN rank is lost and cannot be reached again."""
        self._open_or_raise()
        check_begin(step, self._step, self._shape)
        self._layers.clear()
        self._step = step
        self._captured = self._captured or step.mode is Mode.CAPTURE
        recovery: Deadline | None = None
        for peer in self._layout.peers:
            while True:
                lost = self._lines[peer].link.lost
                if lost is None:
                    try:
                        self._lines[peer].announce(step)
                        break
                    except PeerLost as error:
                        lost = error.message
                recovery = recovery or Deadline(self._settings.recovery_timeout_s)
                self._replace(peer, lost, recovery)
        self._place.event = Event(Phase.ANNOUNCED, time.monotonic(), step.seq)

    def send(self, step: Step, layer: int, hidden: Tensor, router: Tensor | None = None, *, stage: int = 0) -> None:
        """See AttentionPort; later work on the caller's stream may write the tensors again."""
        self._open_or_raise()
        check_send(step, self._step, layer, stage, hidden, router, self._shape, self._layers)
        self._layers[stage] = layer
        rows = hidden.contiguous()
        self._issue(step, layer, stage, rows.data_ptr(), Line.send)
        self._place.event = Event(Phase.SENT, time.monotonic(), step.seq, layer, stage)

    def recv(self, step: Step, layer: int, out: Tensor, *, stage: int = 0) -> None:
        """See AttentionPort; later work on the caller's stream finds `out` filled. `out` must be contiguous."""
        self._open_or_raise()
        check_recv(step, layer, stage, out, self._shape, self._layers)
        if not out.is_contiguous():
            raise ValueError(f"out must be contiguous, found strides {out.stride()}.")
        del self._layers[stage]
        self._issue(step, layer, stage, out.data_ptr(), Line.recv)
        self._place.event = Event(Phase.RECEIVED, time.monotonic(), step.seq, layer, stage)

    def witness(self) -> Callable[[], None]:
        """See DeviceAttentionPort."""
        lines, step = self._all(), self._step

        def check() -> None:
            for line in lines:
                if line.link.lost is not None:
                    raise self._error(
                        PeerLost,
                        f"{line.link.lost.rstrip('.')}, so what this step computed is void; restart this server",
                        line.peer,
                        step,
                    )

        return check

    def peers(self) -> tuple[PeerStatus, ...]:
        """See Port."""
        return tuple(
            PeerStatus(
                peer,
                "connected" if line.link.lost is None else "lost",
                line.link.since,
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
        for line in self._all():
            line.channel.bye()
        self._watch.close()
        self._pulse.close()
        self._free()

    def _issue(
        self, step: Step, layer: int, stage: int, address: int, call: Callable[[Line, int, int, int], None]
    ) -> None:
        """Enqueues each FFN rank's block of a stage's rows, all of them together."""
        blocks = self._split(step.tokens[stage])
        stream, width = self._issuing.device.stream(), self._shape.row_bytes
        peer = blocks[0][0]
        try:
            if len(blocks) == 1:
                call(self._lines[peer], address, (blocks[0][2] - blocks[0][1]) * width, stream)
                return
            with self._issuing.lock, grouped(self._issuing.library):
                for peer, start, stop in blocks:
                    if stop > start:
                        call(self._lines[peer], address + start * width, (stop - start) * width, stream)
        except ConnectorError as error:
            told = self._lines[peer].link.lost or error.message
            raise self._error(
                type(error), f"{told.rstrip('.')}; restart this server", peer, step, layer, stage
            ) from error

    def _replace(self, peer: int, lost: str, recovery: Deadline) -> None:
        """A new line in the place of a lost one; PeerLost where graphs hold the old one."""
        if self._captured:
            raise self._error(
                PeerLost,
                f"{lost.rstrip('.')}, and graphs were captured with it; restart this server",
                peer,
                self._step,
            )
        log.warning(
            "attention rank %d lost FFN rank %d: %s; reconnecting for up to %g s",
            self._layout.rank,
            peer,
            lost,
            recovery.seconds,
        )
        died = self._lines[peer]
        self._lines[peer] = self._connect(peer, recovery)
        died.free()

    def _connect(self, peer: int, deadline: Deadline) -> Line:
        address = self._addresses[peer]
        waiting = Waiting(log, self._layout.rank, peer, shown(address), deadline)
        while not deadline.passed:
            try:
                return connect(address, self._identity, peer, self._issuing, deadline)
            except HandshakeRefused as refused:
                if refused.final:
                    raise self._error(HandshakeRefused, refused.message, peer, self._step) from refused
                waiting.reason = refused.message
            except ConnectorError as error:
                waiting.reason = error.message
            waiting.tell()
            self._closed.wait(deadline.slice(RETRY_S))
            self._open_or_raise()
        raise self._error(DeadlineExceeded, waiting.verdict(), peer, self._step)

    def _all(self) -> tuple[Line, ...]:
        return tuple(self._lines.values())

    def _sweep(self, event: Event | None = None) -> None:
        """On the watch's and the pulse's thread."""
        for line in self._all():
            if line.link.lost is None and not self._closed.is_set():
                line.look(self._settings.timeout_s, event)
                if line.link.lost is not None:
                    log.warning("attention rank %d lost FFN rank %d: %s", self._layout.rank, line.peer, line.link.lost)

    def _error(
        self, kind: type[E], message: str, peer: int, step: Step | None,
        layer: int | None = None, stage: int | None = None,
    ) -> E:  # fmt: skip
        line = self._lines.get(peer)
        theirs = None if line is None else line.channel.event
        seq = None if step is None else step.seq
        return self._place.error(kind, message, peer, theirs, step=seq, layer=layer, stage=stage)

    def _free(self) -> None:
        for line in self._all():
            line.lose("this side was closed")
            line.free()

    def _open_or_raise(self) -> None:
        if self._closed.is_set():
            raise ConnectorError(
                f"{self._place.transport} attention rank {self._layout.rank} is closed; open it again to use it."
            )
