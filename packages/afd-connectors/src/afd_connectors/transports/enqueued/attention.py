"""The attention end: announces steps on the CPU channel and enqueues rows on the caller's stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from afd_connectors.checks import DTYPE_NAMES, check_begin, check_recv, check_send, router_code
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
from afd_connectors.transports.enqueued.carrier import Block, Carrier, Failures, Transfer
from afd_connectors.transports.enqueued.lines import Lines
from afd_connectors.transports.enqueued.user import User
from afd_connectors.transports.enqueued.watch import Watch

if TYPE_CHECKING:
    from torch import Tensor


class EnqueuedAttentionPort(DeviceAttentionPort):
    """See DeviceAttentionPort. Where nothing was captured, `begin` rejoins by itself."""

    def __init__(self, layout: Layout, shape: Shape, facts: Facts, settings: Settings, carrier: Carrier) -> None:
        self._layout, self._shape, self._settings = layout, shape, settings
        self._carrier = carrier
        self._place = Place(carrier.name, layout, Event(Phase.OPENED, time.monotonic()))
        self._split = lru_cache(maxsize=1024)(layout.split)
        self._layers: dict[int, int] = {}
        self._logits: dict[int, int] = {}  # by layer, the dtype code of what comes with its rows
        self._step: Step | None = None
        self._captured = False
        self._rejoining = threading.Lock()
        self._user = User()
        self._lines = Lines(Identity(layout, facts, settings.secret), settings, carrier, self._logits)
        try:
            self._lines.join()
        except ConnectorError as error:
            carrier.close(quiet=True)  # of some FFN ranks there may be lines already
            if not isinstance(error, HandshakeRefused | DeadlineExceeded):
                raise
            peer = layout.peers[0] if error.peer is None else error.peer
            raise self._error(type(error), error.message, peer) from error
        self._watch = Watch(lambda: [line.channel for line in self._lines], self._lines.sweep)
        self._pulse = Pulse(lambda: self._lines.beat(self._place.event))

    def begin(self, step: Step) -> None:
        """See AttentionPort; ConnectorError when a lost FFN rank cannot be reached again."""
        self._open_or_raise()
        check_begin(step, self._step, self._shape)
        self._user.begun()
        self._layers.clear()
        self._step = step
        self._captured = self._captured or step.mode is Mode.CAPTURE
        if not self._captured and self.lost():
            self.rejoin()
        for line in self._lines:
            if line.lost is None:
                with suppress(PeerLost):  # the step is void, as it is when the line is lost a moment later
                    line.announce(step)
        self._place.event = Event(Phase.ANNOUNCED, time.monotonic(), step.seq)

    def send(self, step: Step, layer: int, hidden: Tensor, router: Tensor | None = None, *, stage: int = 0) -> None:
        """See AttentionPort; later work on the caller's stream may write the tensors again.

        A layer's logits have the same dtype in every step, or there are none in any.
        """
        self._open_or_raise()
        check_send(step, self._step, layer, stage, hidden, router, self._shape, self._layers)
        rows, logits = hidden.contiguous(), None if router is None else router.contiguous()
        blocks = [Block(rows.data_ptr(), self._shape.row_bytes)]
        if self._shape.router:
            self._tell(layer, router_code(logits))
        if logits is not None:
            blocks.append(Block(logits.data_ptr(), logits.shape[1] * logits.element_size(), True))
        self._issue(step, layer, stage, blocks, self._carrier.send)
        self._layers[stage] = layer  # now, because what was refused above was not sent
        self._place.event = Event(Phase.SENT, time.monotonic(), step.seq, layer, stage)

    def recv(self, step: Step, layer: int, out: Tensor, *, stage: int = 0) -> None:
        """See AttentionPort; later work on the caller's stream finds `out` filled. `out` must be contiguous."""
        self._open_or_raise()
        check_recv(step, layer, stage, out, self._shape, self._layers)
        if not out.is_contiguous():
            raise ValueError(f"out must be contiguous, found strides {out.stride()}.")
        self._issue(step, layer, stage, (Block(out.data_ptr(), self._shape.row_bytes),), self._carrier.recv)
        del self._layers[stage]
        self._place.event = Event(Phase.RECEIVED, time.monotonic(), step.seq, layer, stage)

    def witness(self) -> Callable[[], None]:
        """See DeviceAttentionPort."""
        lines, step = tuple(self._lines), self._step

        def check() -> None:
            for line in lines:
                if line.lost is not None:
                    told = f"{line.lost.rstrip('.')}, so what this step computed is void"
                    raise self._error(PeerLost, told, line.peer, step)

        return check

    @property
    def lasting(self) -> bool:
        """See DeviceAttentionPort."""
        return self._carrier.lasting

    def lost(self) -> bool:
        """See DeviceAttentionPort."""
        return self._lines.lost() is not None

    def rejoin(self) -> None:
        """See DeviceAttentionPort."""
        recovery = Deadline(self._settings.recovery_timeout_s)
        with self._rejoining:
            while (line := self._lines.lost()) is not None:
                self._open_or_raise()
                try:
                    self._lines.again(line, recovery)
                except HandshakeRefused as refused:
                    raise self._error(HandshakeRefused, refused.message, line.peer, self._step) from refused
                except DeadlineExceeded as error:
                    why = f"{(line.lost or '').rstrip('.')}; {error.message}"
                    raise self._error(PeerLost, why, line.peer, self._step) from error
                except PeerLost:
                    self._open_or_raise()
                    raise

    def awaiting(self) -> AbstractContextManager[None]:
        """See DeviceAttentionPort."""
        return self._lines.awaiting()

    def peers(self) -> tuple[PeerStatus, ...]:
        """See Port."""
        return self._lines.statuses()

    def close(self) -> None:
        """See Port."""
        if self._lines.closed.is_set():
            return
        self._lines.closed.set()
        self._lines.say_goodbye()
        self._watch.close()
        self._pulse.close()
        self._lines.free()
        self._carrier.close(self._user.away(0.0))

    def _tell(self, layer: int, code: int) -> None:
        """Says once of a layer what comes with its rows: graphs on either side rely on it."""
        known = self._logits.setdefault(layer, code)
        if known != code:
            names = {0: "no router logits", **{each: f"logits in {name}" for each, name in DTYPE_NAMES.items()}}
            raise ValueError(f"layer {layer} came with {names[known]} before, found {names[code]}; send the same.")
        for line in self._lines:
            if line.lost is None:
                with suppress(PeerLost):  # the step is void, as it is when the line is lost a moment later
                    line.tell()

    def _issue(
        self, step: Step, layer: int, stage: int, blocks: Sequence[Block],
        call: Callable[[Sequence[Transfer]], Failures],
    ) -> None:  # fmt: skip
        """Enqueues each living FFN rank's part of a stage's rows, all of them together."""
        transfers, failures = [], []
        for peer, start, stop in self._split(step.tokens[stage]):
            line = self._lines[peer]
            if stop == start:
                continue
            for address, width, logits in blocks:
                transfer = Transfer(line.link, address + start * width, stop - start, layer, stage, width, logits)
                if line.lost is None:
                    transfers.append(transfer)
                else:
                    failures.append((transfer, line.lost))
        failures += call(transfers)
        for transfer, reason in failures:
            line = next(line for line in self._lines if line.link is transfer.link)
            line.lose(reason)  # one that refuses a call refuses the next one too
            if step.mode is Mode.CAPTURE:  # a graph without this exchange must not come to be
                raise self._error(PeerLost, line.lost or reason, line.peer, step, layer, stage)

    def _error(
        self, kind: type[E], message: str, peer: int, step: Step | None = None,
        layer: int | None = None, stage: int | None = None,
    ) -> E:  # fmt: skip
        line = self._lines.get(peer)
        theirs = None if line is None else line.channel.event
        seq = None if step is None else step.seq
        return self._place.error(kind, message, peer, theirs, step=seq, layer=layer, stage=stage)

    def _open_or_raise(self) -> None:
        if self._lines.closed.is_set():
            raise ConnectorError(
                f"{self._place.transport} attention rank {self._layout.rank} is closed; open it again to use it."
            )
