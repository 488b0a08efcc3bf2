"""The FFN end: one thread serves every attention rank, computing together what stands at one layer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from afd_connectors.address import ffn_address
from afd_connectors.errors import ConnectorError, PeerLost
from afd_connectors.event import ANSWERED, COMPUTED, Event, Moment, Phase
from afd_connectors.facts import Facts
from afd_connectors.handshake import Identity
from afd_connectors.layout import Layout
from afd_connectors.listener import Arrival, Listener
from afd_connectors.ports import FFNPort, PeerStatus, Work
from afd_connectors.pulse import Pulse
from afd_connectors.settings import Settings
from afd_connectors.shape import Shape
from afd_connectors.transports.paired.batch import Batches, Ticket
from afd_connectors.transports.paired.buffers import flat, torch_dtype
from afd_connectors.transports.paired.guests import Guests
from afd_connectors.transports.paired.head import reply_frame
from afd_connectors.transports.paired.peer import Peer
from afd_connectors.transports.paired.watch import SWEEP_S, Watch

if TYPE_CHECKING:
    from torch import Tensor


class PairedFFNPort(FFNPort):
    """See FFNPort; listens from the moment that it exists.

    transport: how errors call it; seat: makes a Peer of an arrival, ConnectorError when it cannot; in_memory:
    whether requests arrive without a poll telling; gather_s: how long laggards are waited for.
    """

    def __init__(
        self,
        transport: str,
        layout: Layout,
        shape: Shape,
        facts: Facts,
        settings: Settings,
        seat: Callable[[Arrival], Peer],
        *,
        in_memory: bool,
        gather_s: float,
    ) -> None:
        self._transport, self._layout, self._shape = transport, layout, shape
        self._dtype = torch_dtype(shape.dtype)
        self._batches = Batches(layout, shape, gather_s)
        self._row_bytes = shape.row_bytes
        self._moment: Moment = Event(Phase.OPENED, time.monotonic())
        self._using = threading.RLock()
        self._watch = Watch(in_memory=in_memory)
        self._guests = self._watch.guests = Guests(layout, settings.timeout_s, seat, self._watch.wake)
        address = ffn_address(settings, layout.rank, layout.num_ffn)
        identity = Identity(layout, facts, settings.secret)
        try:
            self._listener = Listener(address, identity, self._guests.admit, self._guests.welcome)
        except ConnectorError:
            self._watch.close()
            raise
        self._pulse = Pulse(lambda: self._guests.beat(Event(*self._moment)))

    def recv(self, stage: int | None = None, *, wait_s: float) -> Work | None:
        """See FFNPort."""
        self._using.acquire()  # a with statement takes a tenth of a microsecond more
        try:
            if self._guests.closed:
                raise ConnectorError(
                    f"{self._transport} FFN rank {self._layout.rank} is closed; open it again to receive."
                )
            watch, batches = self._watch, self._batches
            until = time.monotonic() + wait_s
            left: float | None = max(0.0, wait_s)  # None after a look, when the clock is asked only if nothing came
            while not self._guests.closed:
                work = batches.take_lone(watch.served, stage)
                if work is None:
                    choice = batches.choose(watch.served, stage)
                    if choice.members:
                        work = batches.take(watch.served, choice.members)
                if work is not None:
                    watch.begun = False
                    self._moment = (COMPUTED, time.monotonic(), work.step.seq, work.layer, work.stage)
                    return work
                if watch.begun:
                    watch.begun = False
                    if self.on_step is not None:
                        self.on_step()
                        continue
                if left is None:
                    left = until - time.monotonic()
                    if left < 0.0:
                        break
                watch.look(min(left, SWEEP_S if choice.wait_s is None else choice.wait_s))
                left = None
            return None
        finally:
            self._using.release()

    def send(self, work: Work, out: Tensor) -> None:
        """See FFNPort."""
        self._using.acquire()  # see recv
        try:
            step, layer, stage, _, _, ticket = work
            if not isinstance(ticket, Ticket) or self._batches.out.get(stage) is not ticket:
                raise ValueError(f"send needs a work of this port that has no answer yet, found {ticket!r}.")
            members, count = ticket
            if out.shape != (count, self._shape.hidden) or out.dtype is not self._dtype:
                raise ValueError(
                    f"the answer must be {[count, self._shape.hidden]} {self._shape.dtype}, "
                    f"found {list(out.shape)} {out.dtype}."
                )
            out, rows = flat(out)
            width, start = self._row_bytes, 0
            for peer, seq, count in members:
                stop = start + count * width
                if not peer.dropped:
                    try:
                        peer.reply(stage, reply_frame(seq, layer, stage, count), rows[start:stop])
                    except PeerLost as error:
                        self._guests.drop(peer, error.message)
                peer.lent.discard(stage)
                start = stop
            del self._batches.out[stage]
            self._watch.stay_awake()
            self._moment = (ANSWERED, time.monotonic(), step.seq, layer, stage)
        finally:
            self._using.release()

    def peers(self) -> tuple[PeerStatus, ...]:
        """See Port."""
        return self._guests.statuses()

    def close(self) -> None:
        """See Port."""
        if self._guests.closed:
            return
        self._guests.closed = True
        self._watch.wake()
        self._listener.close()
        self._pulse.close()
        self._guests.dismiss()
        if self._using.acquire(timeout=5.0):
            self._guests.free()
            self._watch.close()
            self._using.release()
