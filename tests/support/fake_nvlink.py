"""Peer memory and its kernels as they look without a device: shared memory at fixed addresses, calls that wait."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor

from afd_connectors.transports.nvlink import fp8_reference
from afd_connectors.transports.nvlink.connector import Nvlink
from afd_connectors.transports.nvlink.fp8 import stride_of
from afd_connectors.transports.nvlink.moves import Part, told
from tests.support.fake_nccl import FakeDevice

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_FIXED, _NONE = 0x10, 0
TIMED_OUT, MISMATCH, ENDED = 1, 2, 3


class FakeDriver:
    """See Driver. What is not placed cannot be touched, so a use of it after its end does not go unnoticed.

    refused: why no other process's memory can be mapped, as of devices that do not reach each other.
    """

    refused: ClassVar[str | None] = None

    def __init__(self) -> None:
        self.busy = 0
        self._lock = threading.Lock()
        self._held: dict[int, ctypes.Array[ctypes.c_char]] = {}

    @contextmanager
    def working(self) -> Iterator[None]:
        """While the device does something."""
        with self._lock:
            self.busy += 1
        try:
            yield
        finally:
            with self._lock:
                self.busy -= 1

    def reserve(self, size: int) -> int:
        return self._mmap(None, size, _NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)

    def release(self, address: int, size: int) -> None:
        assert _libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size)) == 0

    def create(self, size: int) -> tuple[int, int]:
        memory = os.memfd_create("afd-fake")
        os.ftruncate(memory, size)
        return memory, os.dup(memory)

    def adopt(self, descriptor: int) -> int:
        return os.dup(descriptor)

    def drop(self, memory: int) -> None:
        os.close(memory)

    def place(self, address: int, size: int, memory: int) -> None:
        self._mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _FIXED, memory)

    def detach(self, address: int, size: int) -> None:
        assert not self.busy, "memory is taken from under the device"
        self._mmap(address, size, _NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED, -1)

    def own(self, size: int) -> int:
        held = ctypes.create_string_buffer(size)
        self._held[ctypes.addressof(held)] = held
        return ctypes.addressof(held)

    host = own

    def free(self, own: int) -> None:
        del self._held[own]

    free_host = free

    def fill(self, address: int, size: int, byte: int) -> None:
        ctypes.memset(address, byte, size)

    def idle(self) -> None:
        while self.busy:
            time.sleep(0.001)

    def mark(self) -> Callable[[], bool]:
        return lambda: not self.busy

    def tensor(self, address: int, rows: int, hidden: int, dtype: torch.dtype) -> Tensor:
        held = (ctypes.c_char * (rows * hidden * dtype.itemsize)).from_address(address)
        return torch.frombuffer(held, dtype=dtype).view(rows, hidden)

    @staticmethod
    def _mmap(address: int | None, size: int, protection: int, flags: int, descriptor: int) -> int:
        found = _libc.mmap(address, size, protection, flags, descriptor, 0)
        assert found != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
        return int(found)


class CountedDriver(FakeDriver):
    """Knows which addresses are reserved; a subclass of its own for each test."""

    held: ClassVar[list[int]]

    def __init_subclass__(cls) -> None:
        cls.held = []

    def reserve(self, size: int) -> int:
        self.held.append(super().reserve(size))
        return self.held[-1]

    def release(self, address: int, size: int) -> None:
        self.held.remove(address)
        super().release(address, size)


class FakeMoves:
    """See Moves and PackedMoves: one word per message, after its rows. launches: parts of each call."""

    launches: ClassVar[list[int]] = []

    def __init__(self, driver: FakeDriver, limit_s: float, dtype: torch.dtype = torch.bfloat16) -> None:
        self._driver, self._limit_s, self._dtype = driver, limit_s, dtype

    def put(self, parts: Sequence[Part], stream: int) -> None:
        self.launches.append(len(parts))
        for part in parts:
            if not ctypes.c_uint32.from_address(part.over).value:
                self._copy(part) if part.scales == 0 else self._pack(part)
                ctypes.c_uint64.from_address(part.flags).value = _next(part) << 32 | part.head

    def wait(self, parts: Sequence[Part], stream: int) -> None:
        self.launches.append(len(parts))
        with self._driver.working():
            for part in parts:
                self._wait(part)

    def _wait(self, part: Part) -> None:
        number, until = _next(part), time.monotonic() + self._limit_s
        while True:
            word = ctypes.c_uint64.from_address(part.flags).value
            if word >> 32 == number:
                break
            over = ctypes.c_uint32.from_address(part.over).value
            ended = ctypes.c_uint32.from_address(part.status).value
            if over or ended or time.monotonic() > until:
                _give_up(part, over or (ENDED if ended else TIMED_OUT), word)
                return
            time.sleep(0.0002)
        if word & 0xFFFFFFFF != part.head:
            _give_up(part, MISMATCH, word)
        elif part.scales:
            self._unpack(part)
        elif part.to != part.start:
            self._copy(part)

    def _copy(self, part: Part) -> None:
        ctypes.memmove(part.to, part.start, part.size)

    def _pack(self, part: Part) -> None:
        rows = self._rows(part, part.start)
        narrow, scales = self._packed(part, part.to)
        narrow[:, : rows.shape[1]], scales[:] = fp8_reference.packed(rows)

    def _unpack(self, part: Part) -> None:
        rows = self._rows(part, part.to)
        narrow, scales = self._packed(part, part.start)
        rows[:] = fp8_reference.unpacked(narrow[:, : rows.shape[1]], scales, rows.dtype)

    def _rows(self, part: Part, address: int) -> Tensor:
        count = told(part.head)[0]
        return self._driver.tensor(address, count, part.size // count // 2, self._dtype)

    def _packed(self, part: Part, address: int) -> tuple[Tensor, Tensor]:
        count = told(part.head)[0]
        narrow = self._driver.tensor(address, count, stride_of(part.size // count), torch.float8_e4m3fn)
        return narrow, self._driver.tensor(part.scales, count, 1, torch.float32)[:, 0]


def _next(part: Part) -> int:
    count = ctypes.c_uint32.from_address(part.counts)
    count.value += 1
    return count.value


def _give_up(part: Part, kind: int, found: int) -> None:
    over = ctypes.c_uint32.from_address(part.over)
    if over.value == 0:
        over.value = kind
        ctypes.c_uint64.from_address(part.status + 8).value = found
        ctypes.c_uint64.from_address(part.status + 16).value = kind << 32 | part.head


class FakeNvlink(Nvlink):
    """nvlink between threads or processes of a host without devices."""

    devices: ClassVar[frozenset[str]] = frozenset({"cpu"})
    driver: ClassVar[type[FakeDriver]] = FakeDriver

    def means(self, limit_s: float) -> tuple[FakeDriver, FakeMoves, FakeDevice]:  # type: ignore[override]
        driver, dtype = self.driver(), getattr(torch, self.shape.dtype)
        return driver, FakeMoves(driver, limit_s, dtype), FakeDevice()
