"""The memory of one pair of ranks: what the peer writes here, what is written there, and what is counted."""

from __future__ import annotations

import contextlib
import ctypes
from functools import partial
from typing import TYPE_CHECKING

from afd_connectors.errors import ConnectorError
from afd_connectors.shape import Shape
from afd_connectors.transports.nvlink.held import Held
from afd_connectors.transports.nvlink.moves import Part, head_of
from afd_connectors.transports.nvlink.sizes import (
    COUNTS,
    FLAGS_AT,
    OVER_BYTES,
    PACKED_LEAST,
    ROWS_AT,
    STATUS_BYTES,
    UNITS_AT,
    UNITS_BYTES,
    Slots,
)

if TYPE_CHECKING:
    from afd_connectors.transports.nvlink.driver import Driver

_ENDED_AT, _FOUND_AT, _ERROR_AT = 0, 8, 16
_MINE, _THEIRS, _COUNTS, _STATUS = "my memory", "the peer's memory", "counts", "status"
_EMPTY = 0xFF  # each byte of a unit that is not there, see units.cu


def _at(name: str) -> str:
    """The addresses of a memory."""
    return f"addresses of {name}"


_ALL = (_MINE, _THEIRS, _at(_MINE), _at(_THEIRS), _COUNTS, _STATUS)


class Window:
    """Addresses for life, memory as long as a peer is connected: graphs know the addresses.

    Each peer gets memory of its own, so that one that was given up and goes on writes to nobody. slots: where they are
    not those of a shape whose rows travel as they are.
    """

    def __init__(self, driver: Driver, shape: Shape, slots: Slots | None = None) -> None:
        self._driver, self.slots = driver, slots or Slots.of(shape)
        self._row_bytes = shape.row_bytes
        self._counts_bytes = 2 * self.slots.number * COUNTS * 4 + OVER_BYTES
        self._held = Held()
        try:
            self._mine, self._theirs = (self._room(name) for name in (_MINE, _THEIRS))
            self._counts = driver.own(self._counts_bytes)
            self._held.keep(_COUNTS, partial(driver.free, self._counts))
            self._status = driver.host(STATUS_BYTES)
            self._held.keep(_STATUS, partial(driver.free_host, self._status))
        except ConnectorError:
            with contextlib.suppress(ConnectorError):  # what cannot be given back now is told by what failed before
                self._held.give_back(*_ALL)
            raise
        self._made: int | None = None

    def _room(self, name: str) -> int:
        """Addresses, which go once nothing is placed at them."""
        size = self.slots.total
        address = self._driver.reserve(size)
        self._held.keep(_at(name), partial(self._driver.release, address, size), after=name)
        return address

    def make(self) -> int:
        """New memory for a new peer to write to; a descriptor of it, to be closed. What is placed stays for now."""
        self.forget()
        self._made, descriptor = self._driver.create(self.slots.total)
        return descriptor

    def attach(self, descriptor: int) -> None:
        """Puts what was made and the peer's memory in place; nothing on the device may use what was there."""
        assert self._made is not None
        theirs = self._driver.adopt(descriptor)
        try:
            self.empty()
            try:
                self._place(_MINE, self._mine, self._made)
                self._place(_THEIRS, self._theirs, theirs)
            except ConnectorError:
                with contextlib.suppress(ConnectorError):  # the next try empties it
                    self.empty()
                raise
        finally:
            try:
                self._driver.drop(theirs)
            finally:
                self.forget()
        self.restart()

    def _place(self, name: str, address: int, memory: int) -> None:
        size = self.slots.total
        self._driver.place(address, size, memory)
        self._held.keep(name, partial(self._driver.detach, address, size))

    def restart(self) -> None:
        """Nothing came and nothing went yet."""
        self._driver.fill(self._mine, self.slots.total, 0)
        for place in range(self.slots.number):
            self._driver.fill(self._mine + place * self.slots.slot + UNITS_AT, UNITS_BYTES, _EMPTY)
        self._driver.fill(self._counts, self._counts_bytes, 0)
        ctypes.memset(self._status, 0, STATUS_BYTES)

    def forget(self) -> None:
        """Lets go of what was made for a peer that did not come."""
        made, self._made = self._made, None
        if made is not None:
            self._driver.drop(made)

    def empty(self) -> None:
        """Gives the memory back, not the addresses; nothing on the device may use it. ConnectorError where some could
        not be; the next call tries that alone.
        """
        self._held.give_back(_MINE, _THEIRS)

    def free(self) -> None:
        """Gives everything back; as of `empty`."""
        self._status = 0
        try:
            self.forget()
        finally:
            self._held.give_back(*_ALL)

    def outgoing(self, start: int, rows: int, layer: int, stage: int, logits: int = 0) -> Part:
        """A message of rows that lie at `start`; logits: bytes of a row, if these are rows of router logits."""
        place = self.slots.place(stage, logits > 0)
        slot = self._theirs + place * self.slots.slot
        size = rows * (logits or self._row_bytes)
        scales = 0 if logits or size < PACKED_LEAST else self.slots.scales
        return self._part(start, slot + ROWS_AT, slot, 2 * place, size, head_of(rows, layer, stage), scales)

    def incoming(self, to: int, rows: int, layer: int, stage: int, logits: int = 0) -> Part:
        """A message of rows that are wanted at `to`, which may be `landing`; logits: as of `outgoing`."""
        place = self.slots.place(stage, logits > 0)
        slot = self._mine + place * self.slots.slot
        size = rows * (logits or self._row_bytes)
        scales = 0 if logits or size < PACKED_LEAST else self.slots.scales
        return self._part(slot + ROWS_AT, to, slot, 2 * place + 1, size, head_of(rows, layer, stage), scales)

    def landing(self, stage: int) -> int:
        """Where rows arrive."""
        return self._mine + stage * self.slots.slot + ROWS_AT

    def _part(self, start: int, to: int, slot: int, counted: int, size: int, head: int, scales: int) -> Part:
        counts = self._counts + 4 * COUNTS * counted
        over = self._counts + self._counts_bytes - OVER_BYTES
        at = slot + scales if scales else 0
        return Part(start, to, slot + FLAGS_AT, counts, over, self._status, size, head, at)

    def end(self) -> None:
        """Ends every wait of the device, now and from now on; of one that was freed there is none."""
        if self._status:
            ctypes.c_uint32.from_address(self._status + _ENDED_AT).value = 1

    def error(self) -> tuple[int, int, int]:
        """(kind, expected head, found word) of a wait that the device gave up; kind 0 while there is none."""
        if not self._status:
            return 0, 0, 0
        word = ctypes.c_uint64.from_address(self._status + _ERROR_AT).value
        return word >> 32, word & 0xFFFFFFFF, ctypes.c_uint64.from_address(self._status + _FOUND_AT).value
