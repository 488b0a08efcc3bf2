"""The FFN end: takes announced steps from the CPU channels and enqueues their rows on the caller's stream."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from afd_connectors.address import ffn_address
from afd_connectors.errors import ConnectorError
from afd_connectors.event import Event, Phase
from afd_connectors.facts import Facts
from afd_connectors.gather_steps import Choice, Waiting, choose
from afd_connectors.handshake import Identity
from afd_connectors.layout import Layout
from afd_connectors.listener import Arrival, Listener
from afd_connectors.ports import PeerStatus, Work
from afd_connectors.pulse import Pulse
from afd_connectors.settings import Settings
from afd_connectors.shape import Shape
from afd_connectors.stepped import Gathered, Member, SteppedFFNPort
from afd_connectors.transports.enqueued.batch import Batch, Part
from afd_connectors.transports.enqueued.carrier import Block, Carrier
from afd_connectors.transports.enqueued.hearing import Hearing
from afd_connectors.transports.enqueued.peer import Peer
from afd_connectors.transports.enqueued.routers import Routers
from afd_connectors.transports.enqueued.user import User
from afd_connectors.transports.enqueued.watch import Watch
from afd_connectors.transports.paired.guests import Guests

if TYPE_CHECKING:
    from torch import Tensor

SWEEP_S, AWAY_S = 0.5, 1.0


class EnqueuedFFNPort(SteppedFFNPort):
    """See SteppedFFNPort; listens from the moment that it exists. gather_s: how long laggards are waited for."""

    def __init__(
        self, layout: Layout, shape: Shape, facts: Facts, settings: Settings, carrier: Carrier, gather_s: float
    ) -> None:
        self._layout, self._shape, self._gather_s = layout, shape, gather_s
        # A living attention rank may take its time before it sends, and a dead one is noticed by its connection.
        self._limit_s = settings.recovery_timeout_s
        self._dtype: torch.dtype = getattr(torch, shape.dtype)
        rows = shape.tokens * len(layout.peers)
        self._rooms = [
            torch.empty((rows, shape.hidden), dtype=self._dtype, device=carrier.device.name)
            for _ in range(shape.stages)
        ]
        self._routers = Routers(shape, rows, carrier.device.name)
        self._carrier = carrier
        self._epochs = itertools.count(1)
        self._event = Event(Phase.OPENED, time.monotonic())
        self._companions: tuple[int, ...] = ()
        self._planned: tuple[Gathered, dict[int, Batch]] | None = None
        self._out: dict[int, tuple[Batch, int]] = {}  # by stage: what has no answer yet, and its layer
        self._using, self._user = threading.RLock(), User()
        self._hearing = Hearing()
        self._guests = self._hearing.guests = Guests(layout, settings.timeout_s, self._seat, self._hearing.wake)
        address = ffn_address(settings, layout.rank, layout.num_ffn)
        identity = Identity(layout, facts, settings.secret)
        try:
            self._listener = Listener(address, identity, self._guests.admit, self._guests.welcome)
        except ConnectorError:
            self._hearing.close()
            carrier.close(quiet=True)
            raise
        self._watch = Watch(lambda: [peer.channel for peer in self._guests if not peer.dropped], self._sweep)
        self._pulse = Pulse(lambda: self._guests.beat(self._event))
        carrier.prepare()

    @property
    def layers(self) -> int:
        """See SteppedFFNPort."""
        return self._shape.layers

    @property
    def lasting(self) -> bool:
        """See SteppedFFNPort."""
        return self._carrier.lasting

    def next_step(self, *, wait_s: float) -> Gathered | None:
        """See SteppedFFNPort."""
        until = time.monotonic() + wait_s
        with self._using:
            self._user.done()
            while not self._guests.closed:
                self._hearing.hear()
                choice = self._choose()
                if choice.peers:
                    return self._gather(choice.peers)
                left = until - time.monotonic()
                if left <= 0.0:
                    return None
                self._hearing.wait(min(left, SWEEP_S if choice.wait_s is None else choice.wait_s))
        raise ConnectorError(f"{self._carrier.name} FFN rank {self._layout.rank} is closed; open it again to receive.")

    def take(self, gathered: Gathered, layer: int, stage: int) -> Work | None:
        """See SteppedFFNPort."""
        batch = self._plan(gathered, stage)
        if not batch.rows:
            return None
        room = self._room(batch, stage)
        blocks = [Block(room.data_ptr(), self._shape.row_bytes)]
        router = self._routers.room(stage, batch.rows, self._code(batch, layer)) if self._shape.router else None
        if router is not None:
            blocks.append(Block(router.data_ptr(), router.shape[1] * router.element_size(), True))
        batch.issue(self._carrier.recv, blocks, layer, stage, self._fail)
        self._out[stage] = batch, layer
        step = gathered.members[0].step
        self._event = Event(Phase.COMPUTED, time.monotonic(), step.seq, layer, stage)
        return Work(step, layer, stage, room[: batch.rows], router, batch)

    def send(self, work: Work, out: Tensor) -> None:
        """See FFNPort."""
        batch, layer = self._out.get(work.stage, (None, None))
        if batch is None or batch is not work.ticket or layer != work.layer:
            raise ValueError(f"send needs a work of this port that has no answer yet, found {work.ticket!r}.")
        expected = (batch.rows, self._shape.hidden)
        if out.shape != expected or out.dtype is not self._dtype:
            raise ValueError(
                f"the answer must be {list(expected)} {self._shape.dtype}, found {list(out.shape)} {out.dtype}."
            )
        rows = out.contiguous()  # held until its copy is enqueued
        block = Block(rows.data_ptr(), self._shape.row_bytes)
        batch.issue(self._carrier.send, (block,), work.layer, work.stage, self._fail)
        del self._out[work.stage]
        self._event = Event(Phase.ANSWERED, time.monotonic(), work.step.seq, work.layer, work.stage)

    def epochs(self) -> Mapping[int, int]:
        """See SteppedFFNPort."""
        return {peer.rank: peer.epoch for peer in self._guests if not peer.dropped}

    def peers(self) -> tuple[PeerStatus, ...]:
        """See Port."""
        return self._guests.statuses()

    def close(self) -> None:
        """See Port. Memory that a step of another thread may still use stays until the process ends."""
        if self._guests.closed:
            return
        self._guests.closed = True
        self._hearing.wake()
        self._listener.close()
        self._watch.close()
        self._pulse.close()
        self._guests.dismiss()
        quiet = self._user.away(AWAY_S)
        if self._using.acquire(timeout=5.0):
            self._guests.free()
            self._hearing.close()
            self._carrier.close(quiet and self._user.away(0.0))
            self._using.release()

    def _seat(self, arrival: Arrival) -> Peer:
        """On a thread of the listener."""
        return Peer(arrival, self._shape, self._carrier.offer(arrival), next(self._epochs))

    def _choose(self) -> Choice:
        waiting = []
        for peer in self._hearing.by_rank.values():
            if peer.steps and not peer.dropped:
                step, since = peer.steps[0]
                waiting.append(Waiting(peer.rank, step.mode, since))
        companions = [
            rank
            for rank in self._companions
            if rank in self._hearing.by_rank and not self._hearing.by_rank[rank].dropped
        ]
        return choose(waiting, companions, time.monotonic(), self._gather_s)

    def _gather(self, ranks: tuple[int, ...]) -> Gathered:
        members = []
        for rank in ranks:
            peer = self._hearing.by_rank[rank]
            step, _ = peer.steps.popleft()
            members.append(Member(rank, peer.epoch, step))
        self._companions = ranks
        self._user.begun()
        self._hearing.stay_awake()
        return Gathered(tuple(members))

    def _plan(self, gathered: Gathered, stage: int) -> Batch:
        """The same for every layer of a step."""
        if self._planned is None or self._planned[0] is not gathered:
            self._planned = (gathered, {})
        known = self._planned[1]
        if stage not in known:
            parts, rows = [], 0
            for member in gathered.members:
                tokens = member.step.tokens
                share = self._layout.share(tokens[stage]) if stage < len(tokens) else 0
                if share:
                    peer = self._hearing.by_rank.get(member.rank)
                    current = peer if peer is not None and peer.epoch == member.epoch else None
                    parts.append(Part(current, rows, share))
                    rows += share
            known[stage] = Batch(tuple(parts), rows)
        return known[stage]

    def _code(self, batch: Batch, layer: int) -> int:
        """The dtype code of a layer's logits, waited for where a peer has just joined; who disagrees is dropped."""
        with self._using:
            codes = {peer: self._hearing.logits(peer, layer, self._limit_s) for _, peer in batch.alive()}
        agreed = next((code for code in codes.values() if code is not None), 0)
        for peer, code in codes.items():
            if code is None:
                self._fail(peer, f"it did not tell of the logits of layer {layer} within {self._limit_s:g} s")
            elif code != agreed:
                self._fail(peer, f"its logits of layer {layer} are of another dtype than those of other ranks")
        return agreed

    def _room(self, batch: Batch, stage: int) -> Tensor:
        """Where a batch is received: where it arrives by itself, if there is such a place."""
        peer = batch.only
        landing = None if peer is None else peer.link.landing(stage, batch.rows)
        return self._rooms[stage] if landing is None else landing

    def _sweep(self) -> None:
        """On the watch's thread; the device gives up links too."""
        for peer in self._guests:
            reason = peer.link.lost
            if reason is not None and not peer.dropped:
                self._guests.drop(peer, reason)
        self._guests.sweep()

    def _fail(self, peer: Peer, reason: str) -> None:
        self._guests.drop(peer, peer.link.lost or reason)
