"""What the transport asks of the device, as one value, so that a test can stand in for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Device(Protocol):
    """The device of one port."""

    @property
    def name(self) -> str:
        """The torch device that buffers lie on."""

    def bind(self) -> None:
        """Makes it the calling thread's device."""

    def stream(self) -> int:
        """The raw handle of the calling thread's current stream."""

    def settle(self, enqueue: Callable[[], None]) -> None:
        """Runs `enqueue` on a stream of its own and waits until the device has done it."""


class CudaDevice:
    """The device that is current on the thread that makes it."""

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda
        self._index = torch.cuda.current_device()

    @property
    def name(self) -> str:
        """See Device."""
        return f"cuda:{self._index}"

    def bind(self) -> None:
        """See Device."""
        self._cuda.set_device(self._index)

    def stream(self) -> int:
        """See Device."""
        handle: int = self._cuda.current_stream(self._index).cuda_stream
        return handle

    def settle(self, enqueue: Callable[[], None]) -> None:
        """See Device."""
        stream = self._cuda.Stream(self._index)
        with self._cuda.stream(stream):
            enqueue()
        stream.synchronize()
