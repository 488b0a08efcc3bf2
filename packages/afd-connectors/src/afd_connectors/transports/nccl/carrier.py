"""Rows through NCCL, one call per peer; see enqueued.carrier."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import ClassVar

from afd_connectors.deadline import Deadline
from afd_connectors.errors import ConnectorError
from afd_connectors.listener import Arrival
from afd_connectors.transports.enqueued.carrier import Failures, Transfer
from afd_connectors.transports.enqueued.device import Device
from afd_connectors.transports.nccl import meeting
from afd_connectors.transports.nccl.library import grouped
from afd_connectors.transports.nccl.link import Issuing, Link


class NcclCarrier:
    """See Carrier. Graphs hold communicators, so they do not outlast a link."""

    name: ClassVar[str] = "nccl-p2p"
    lasting: ClassVar[bool] = False

    def __init__(self, issuing: Issuing) -> None:
        self._issuing = issuing

    @property
    def device(self) -> Device:
        """See Carrier."""
        return self._issuing.device

    def prepare(self) -> None:
        """See Carrier."""
        meeting.rehearse(self._issuing)

    def offer(self, arrival: Arrival) -> Link:
        """See Carrier."""
        return meeting.offer(arrival, self._issuing)

    def accept(self, data: socket.socket, peer: int, deadline: Deadline) -> Link:
        """See Carrier."""
        return meeting.accept(data, peer, self._issuing, deadline)

    def send(self, transfers: Sequence[Transfer]) -> Failures:
        """See Carrier."""
        return self._issue(transfers, Link.send)

    def recv(self, transfers: Sequence[Transfer]) -> Failures:
        """See Carrier."""
        return self._issue(transfers, Link.recv)

    def close(self) -> None:
        """See Carrier; lost communicators end on threads of their own."""

    def _issue(self, transfers: Sequence[Transfer], call: Callable[[Link, int, int, int], None]) -> Failures:
        stream = self._issuing.device.stream()
        failures: list[tuple[Transfer, str]] = []
        if len(transfers) == 1:  # a group around one call costs as much as the call
            self._one(transfers[0], stream, call, failures)
        elif transfers:
            with self._issuing.lock, grouped(self._issuing.library):
                for transfer in transfers:
                    self._one(transfer, stream, call, failures)
        return failures

    def _one(
        self, transfer: Transfer, stream: int, call: Callable[[Link, int, int, int], None],
        failures: list[tuple[Transfer, str]],
    ) -> None:  # fmt: skip
        assert isinstance(transfer.link, Link)
        try:
            call(transfer.link, transfer.address, transfer.rows * transfer.width, stream)
        except ConnectorError as error:
            failures.append((transfer, error.message))
