"""Rows by stores into the peer's memory; see enqueued.carrier."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from afd_connectors.deadline import Deadline
from afd_connectors.errors import ConnectorError
from afd_connectors.listener import Arrival
from afd_connectors.shape import Shape
from afd_connectors.transports.enqueued.carrier import Failures, Transfer
from afd_connectors.transports.enqueued.device import Device
from afd_connectors.transports.handover import decline
from afd_connectors.transports.nvlink import meeting
from afd_connectors.transports.nvlink.link import Link
from afd_connectors.transports.nvlink.moves import Moves, Part
from afd_connectors.transports.nvlink.sizes import UNIT, Slots
from afd_connectors.transports.nvlink.window import Window

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from afd_connectors.transports.nvlink.driver import Driver
    from afd_connectors.transports.nvlink.fp8 import PackedMoves

log = logging.getLogger("afd.connectors")
CLOSE_S, IDLE_S, DECLINE_S = 5.0, 30.0, 5.0


class NvlinkCarrier:
    """See Carrier. An attention rank has one window per FFN rank for life, so its graphs outlast a link; an FFN rank
    has one per link, and gives it back once the device is past all that used it.
    """

    name: ClassVar[str] = "nvlink"
    lasting: ClassVar[bool] = True

    def __init__(
        self, driver: Driver, moves: Moves | PackedMoves, device: Device, shape: Shape, slots: Slots, limit_s: float
    ) -> None:
        self._driver, self._moves, self._device, self._shape, self._slots = driver, moves, device, shape, slots
        self._limit_s = limit_s
        self._windows: dict[int, Window] = {}
        self._retired: list[tuple[Window, Callable[[], bool]]] = []
        self._meeting: set[int] = set()  # peers whose window a thread puts other memory under just now
        self._closed, self._quiet = False, True
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
        self._open_or_raise()
        try:
            window = Window(self._driver, self._shape, self._slots)
        except ConnectorError as error:
            decline(arrival.data, error, Deadline(DECLINE_S))
            raise
        try:
            meeting.offer(arrival.data, window)
            self._open_or_raise()
            return Link(window, self._limit_s, self._rooms(window), self._retire)
        except BaseException:
            _free([window])
            raise

    def accept(self, data: socket.socket, peer: int, deadline: Deadline) -> Link:
        """See Carrier."""
        self._device.bind()
        with self._lock:
            self._open_or_raise()
            self._meeting.add(peer)
        try:
            window = self._windows.get(peer)
            if window is None:
                window = self._windows[peer] = Window(self._driver, self._shape, self._slots)
            meeting.accept(data, window, deadline, self._settle)
        finally:
            with self._lock:
                self._meeting.discard(peer)
                late = [self._windows.pop(peer)] if self._closed and peer in self._windows else []
            self._give_back(late, self._quiet)
        self._open_or_raise()
        return Link(window, self._limit_s, [], lambda _link: None)

    def send(self, transfers: Sequence[Transfer]) -> Failures:
        """See Carrier."""
        return self._issue(transfers, Window.outgoing, self._moves.put)

    def recv(self, transfers: Sequence[Transfer]) -> Failures:
        """See Carrier."""
        return self._issue(transfers, Window.incoming, self._moves.wait)

    def close(self, quiet: bool) -> None:
        """See Carrier; nothing is unmapped that the device or a thread of this process may still use.

        What another thread is about to connect goes when that thread sees that this is closed.
        """
        self._device.bind()
        with self._lock:
            self._closed, self._quiet = True, quiet
            idle = [self._windows.pop(peer) for peer in tuple(self._windows) if peer not in self._meeting]
            windows = [*idle, *(window for window, _ in self._retired)]
            self._retired = []
        self._give_back(windows, quiet)

    def _give_back(self, windows: Sequence[Window], quiet: bool) -> None:
        if not windows:
            return
        if not (quiet and self._idle(CLOSE_S)):
            log.warning("the memory of %d peers may still be used and stays until this process ends", len(windows))
            return
        _free(windows)

    def _idle(self, limit_s: float) -> bool:
        """Waits at most `limit_s` seconds until the device has done all that it was given; whether that is so."""
        done = threading.Event()

        def wait() -> None:
            try:
                self._device.bind()
                self._driver.idle()
                done.set()
            except ConnectorError as error:
                log.warning("the device could not be waited for: %s", error)

        thread = threading.Thread(target=wait, name="afd-idle", daemon=True)
        thread.start()
        thread.join(limit_s)
        return done.is_set()

    def _settle(self) -> None:
        if not self._idle(IDLE_S):
            raise ConnectorError(f"the device has not done within {IDLE_S:g} s what it was given for the lost peer")

    def _issue(
        self, transfers: Sequence[Transfer], part: Callable[[Window, int, int, int, int, int], Part],
        enqueue: Callable[[Sequence[Part], int], None],
    ) -> Failures:  # fmt: skip
        parts = []
        for transfer in transfers:
            link, address, rows, layer, stage, width, logits = transfer
            if address % UNIT:
                raise ValueError(f"rows must lie at a multiple of {UNIT} bytes, found address {address}.")
            if width % UNIT:
                raise ValueError(f"rows must have a multiple of {UNIT} bytes, found {width}; use 'nccl-p2p'.")
            assert isinstance(link, Link)
            parts.append(part(link.window, address, rows, layer, stage, width if logits else 0))
        if not parts:
            return ()
        try:
            enqueue(parts, self._device.stream())
        except ConnectorError as error:
            return [(transfer, error.message) for transfer in transfers]
        return ()

    def _rooms(self, window: Window) -> list[Tensor]:
        if self._slots.scales:  # what arrives is not what is computed with
            return []
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
            if not self._closed:
                self._retired.append((link.window, self._driver.mark()))
                return
        self._give_back([link.window], True)  # connected while this was closed: nobody enqueued anything on it

    def _open_or_raise(self) -> None:
        if self._closed:
            raise ConnectorError("this side was closed while it connected.")

    def _collect(self) -> None:
        """Gives back what the device is past."""
        with self._lock:
            past = [done() for _, done in self._retired]
            windows = [window for (window, _), over in zip(self._retired, past, strict=True) if over]
            self._retired = [pair for pair, over in zip(self._retired, past, strict=True) if not over]
        _free(windows)


def _free(windows: Sequence[Window]) -> None:
    """Each once, whatever becomes of the others; what CUDA does not take back is told, and hinders no peer."""
    for window in windows:
        try:
            window.free()
        except ConnectorError as error:
            log.warning("memory of a peer could not be given back and stays until this process ends: %s", error)
