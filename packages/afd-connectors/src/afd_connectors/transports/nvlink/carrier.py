"""Rows by stores into the peer's memory; see enqueued.carrier."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from afd_connectors.deadline import Deadline
from afd_connectors.errors import ConnectorError
from afd_connectors.listener import Arrival
from afd_connectors.shape import Shape
from afd_connectors.transports.enqueued.carrier import Failures, Transfer
from afd_connectors.transports.enqueued.device import Device
from afd_connectors.transports.nvlink import meeting
from afd_connectors.transports.nvlink.link import Link
from afd_connectors.transports.nvlink.moves import Moves, Part
from afd_connectors.transports.nvlink.sizes import UNIT
from afd_connectors.transports.nvlink.window import Window

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from afd_connectors.transports.nvlink.driver import Driver

log = logging.getLogger("afd.connectors")
CLOSE_S = 5.0


class NvlinkCarrier:
    """See Carrier. An attention rank has one window per FFN rank for life, so its graphs outlast a link; an FFN rank
    has one per link, and gives it back once the device is past all that used it.
    """

    name: ClassVar[str] = "nvlink"
    lasting: ClassVar[bool] = True

    def __init__(self, driver: Driver, moves: Moves, device: Device, shape: Shape, limit_s: float) -> None:
        self._driver, self._moves, self._device, self._shape, self._limit_s = driver, moves, device, shape, limit_s
        self._windows: dict[int, Window] = {}
        self._retired: list[tuple[Window, Callable[[], bool]]] = []
        self._lock = threading.Lock()

    @property
    def device(self) -> Device:
        """See Carrier."""
        return self._device

    def prepare(self) -> None:
        """See Carrier; the kernels are there already."""

    def offer(self, arrival: Arrival) -> Link:
        """See Carrier."""
        self._device.bind()
        self._collect()
        window = Window(self._driver, self._shape)
        try:
            meeting.offer(arrival.data, window)
        except BaseException:
            window.free()
            raise
        return Link(window, self._limit_s, self._rooms(window), self._retire)

    def accept(self, data: socket.socket, peer: int, deadline: Deadline) -> Link:
        """See Carrier."""
        self._device.bind()
        window = self._windows.get(peer)
        if window is None:
            window = self._windows[peer] = Window(self._driver, self._shape)
        meeting.accept(data, window, deadline, self._driver.idle)
        return Link(window, self._limit_s, [], lambda _link: None)

    def send(self, transfers: Sequence[Transfer]) -> Failures:
        """See Carrier."""
        return self._issue(transfers, Window.outgoing, self._moves.put)

    def recv(self, transfers: Sequence[Transfer]) -> Failures:
        """See Carrier."""
        return self._issue(transfers, Window.incoming, self._moves.wait)

    def close(self) -> None:
        """See Carrier."""
        self._device.bind()
        windows = tuple(self._windows.values())
        self._windows.clear()
        if windows:
            self._driver.idle()
        for window in windows:
            window.free()
        limit = Deadline(CLOSE_S)
        while self._collect() and not limit.passed:
            time.sleep(0.001)
        if self._retired:
            log.warning(
                "the device still uses the memory of %d peers, which stays until this process ends", len(self._retired)
            )

    def _issue(
        self, transfers: Sequence[Transfer], part: Callable[[Window, int, int, int, int], Part],
        enqueue: Callable[[Sequence[Part], int], None],
    ) -> Failures:  # fmt: skip
        parts = []
        for transfer in transfers:
            if transfer.address % UNIT:
                raise ValueError(f"rows must lie at a multiple of {UNIT} bytes, found address {transfer.address}.")
            assert isinstance(transfer.link, Link)
            parts.append(part(transfer.link.window, transfer.address, transfer.rows, transfer.layer, transfer.stage))
        if not parts:
            return ()
        try:
            enqueue(parts, self._device.stream())
        except ConnectorError as error:
            return [(transfer, error.message) for transfer in transfers]
        return ()

    def _rooms(self, window: Window) -> list[Tensor]:
        import torch

        dtype: torch.dtype = getattr(torch, self._shape.dtype)
        return [
            self._driver.tensor(window.landing(stage), self._shape.tokens, self._shape.hidden, dtype)
            for stage in range(self._shape.stages)
        ]

    def _retire(self, link: Link) -> None:
        """On the thread that enqueued."""
        self._device.bind()
        with self._lock:
            self._retired.append((link.window, self._driver.mark()))

    def _collect(self) -> bool:
        """Gives back what the device is past; whether anything is left."""
        with self._lock:
            kept = []
            for window, done in self._retired:
                if done():
                    window.free()
                else:
                    kept.append((window, done))
            self._retired = kept
            return bool(kept)
