"""What moves the rows of a device transport: the part that differs between transports."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from afd_connectors.deadline import Deadline
from afd_connectors.listener import Arrival
from afd_connectors.transports.enqueued.device import Device

if TYPE_CHECKING:
    from torch import Tensor


class Link(Protocol):
    """A connected pair of ranks. since: time.monotonic() at which it was made or lost."""

    since: float

    @property
    def lost(self) -> str | None:
        """Why it is void, None while it is not; nothing is enqueued on it any more then."""

    def lose(self, reason: str) -> None:
        """Ends what the device waits for on it, soon; the first reason stays and is there before anything ends."""

    def ended(self, limit_s: float) -> bool:
        """Waits at most `limit_s` seconds until what a lost link holds can be given back; whether that is so."""

    def free(self) -> None:
        """Nothing is enqueued on it from now on; what was may not be done yet."""

    def landing(self, stage: int, rows: int) -> Tensor | None:
        """Where that many rows arrive by themselves, [rows, hidden]; None where they are to be given a place."""


class Transfer(NamedTuple):
    """Rows of one exchange over one link, contiguous at a device address.

    width: bytes of a row, which are the shape's unless these are rows of router logits.
    """

    link: Link
    address: int
    rows: int
    layer: int
    stage: int
    width: int


class Block(NamedTuple):
    """One tensor of an exchange: where its rows begin, and bytes of each."""

    address: int
    width: int


Failures = Sequence[tuple[Transfer, str]]


class Carrier(Protocol):
    """Of one port. Enqueues on the calling thread's current stream, all transfers of a call together, so that none
    waits for another; those that cannot be enqueued are returned with the reason. Those of one link keep their order,
    which is the same on both sides: hidden states, then router logits.
    """

    name: ClassVar[str]
    lasting: ClassVar[bool]  # whether what was captured over a link also works over its successor

    @property
    def device(self) -> Device:
        """Where rows lie."""

    def prepare(self) -> None:
        """Does early, on the FFN side, what the first link would take long for."""

    def offer(self, arrival: Arrival) -> Link:
        """The FFN side of a new link; ConnectorError when the other side does not come."""

    def accept(self, data: socket.socket, peer: int, deadline: Deadline) -> Link:
        """The attention side; HandshakeRefused when the sides do not fit, ConnectorError when rank `peer` is away."""

    def send(self, transfers: Sequence[Transfer]) -> Failures:
        """To the peers."""

    def recv(self, transfers: Sequence[Transfer]) -> Failures:
        """From the peers."""

    def close(self) -> None:
        """Gives everything back; all links are freed."""
