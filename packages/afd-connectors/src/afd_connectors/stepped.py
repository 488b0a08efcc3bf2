"""The contract of device transports, whose FFN role is driven by whole steps: a graph cannot ask what comes next."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from afd_connectors.ports import AttentionPort, FFNPort, Work
from afd_connectors.step import Mode, Step


@dataclass(frozen=True, slots=True)
class Member:
    """One attention rank's part in a gathered step.

    epoch: counts the connections that this port has had; what was captured over one is void over another.
    """

    rank: int
    epoch: int
    step: Step


@dataclass(frozen=True, slots=True)
class Gathered:
    """The steps of several attention ranks that are served together, ascending by rank, at least one.

    Of a step in mode CAPTURE, which is always alone, no rows move.
    """

    members: tuple[Member, ...]

    @property
    def capture(self) -> bool:
        """Whether the attention rank only records the step into a graph."""
        return self.members[0].step.mode is Mode.CAPTURE

    @property
    def replay(self) -> bool:
        """Whether every attention rank runs the step from a graph."""
        return all(member.step.mode is Mode.REPLAY for member in self.members)

    @property
    def stages(self) -> int:
        """Stages of the member that has the most."""
        return max(len(member.step.tokens) for member in self.members)

    def exchanges(self, layers: int, local: Container[int] = ()) -> Iterator[tuple[int, int]]:
        """(layer, stage) in the order in which every rank of either role must issue them.

        local: layers below ``layers`` that are never exchanged.
        """
        for layer in range(layers):
            for stage in range(self.stages if layer not in local else 0):
                yield layer, stage


class DeviceAttentionPort(AttentionPort):
    """An attention end whose calls only enqueue work on the device, so that a failure shows later.

    A step in which an FFN rank is lost goes on to its end without it and is void: its user asks `witness`, calls
    `rejoin` and runs the whole step again with a new seq, which is what "reconnect" means here. Graphs do not outlive
    a connection unless `lasting`: they are captured again after `rejoin`.
    """

    @property
    def lasting(self) -> bool:
        """Whether graphs that were captured over one connection work over the next."""
        return False

    @abstractmethod
    def witness(self) -> Callable[[], None]:
        """To be taken once a step is issued and called once its results are read.

        The call raises ConnectorError when a peer was lost by then: the step may hold garbage.
        """

    @abstractmethod
    def lost(self) -> bool:
        """Whether an FFN rank is lost, so that every step is void until `rejoin`."""

    @abstractmethod
    def rejoin(self) -> None:
        """Reaches every lost FFN rank or a standby of it; nothing that uses the lost ones may be on the device.

        ConnectorError when that takes longer than recovery_timeout_s, with why it was lost.
        """

    @abstractmethod
    def awaiting(self) -> AbstractContextManager[None]:
        """To be entered while the device's results are waited for.

        FFN ranks that live and do not answer are lost after timeout_s, which ends what the device waits for.
        """


class SteppedFFNPort(FFNPort):
    """An FFN end whose calls only enqueue work on the calling thread's current stream.

    Every layer below the shape's bound is exchanged in every stage that has rows, in the order of
    `Gathered.exchanges`, unless both roles leave the same layers out; `recv` knows of none. A lost peer's rows are
    undefined and nobody's answer.
    """

    _open: tuple[Gathered, Iterator[tuple[int, int]]] | None = None

    @property
    def lasting(self) -> bool:
        """Whether attention ranks replay what they captured over an earlier connection, so that steps are replayed
        which were never captured over this one.
        """
        return False

    @property
    @abstractmethod
    def layers(self) -> int:
        """Layers of a step."""

    @abstractmethod
    def next_step(self, *, wait_s: float) -> Gathered | None:
        """The next step to serve, or None when none was announced within `wait_s` seconds.

        ConnectorError on a closed port.
        """

    @abstractmethod
    def take(self, gathered: Gathered, layer: int, stage: int) -> Work | None:
        """Enqueues the receipt of one exchange into one contiguous batch; None when nobody has rows in the stage."""

    @abstractmethod
    def epochs(self) -> Mapping[int, int]:
        """The epoch of every attention rank that is connected now."""

    def recv(self, stage: int | None = None, *, wait_s: float) -> Work | None:
        """See FFNPort; for users that know no steps. The order is the step's, so no stage can be asked for."""
        if stage is not None:
            raise ValueError(f"a stepped port serves stages in the step's order, found a call for stage {stage}.")
        until = time.monotonic() + wait_s
        while True:
            if self._open is not None:
                gathered, left = self._open
                for layer, place in left:
                    work = self.take(gathered, layer, place)
                    if work is not None:
                        return work
                self._open = None
            found = self.next_step(wait_s=max(0.0, until - time.monotonic()))
            if found is None:
                return None
            if not found.capture:
                self._open = (found, found.exchanges(self.layers))
