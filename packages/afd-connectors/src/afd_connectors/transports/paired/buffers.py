"""Memory that sockets read into and write from: torch CPU tensors seen as bytes, without copies."""

from __future__ import annotations

import ctypes
from functools import lru_cache

import torch
from torch import Tensor

from afd_connectors.checks import DTYPE_NAMES
from afd_connectors.shape import DTYPE_BYTES, ROUTER_BYTES, Shape


@lru_cache(maxsize=256)
def _bytes_at(address: int, count: int) -> memoryview:
    # Cached by address because allocators hand out the same few again and again; a view that outlives its
    # tensor does no harm, since it is only looked up for a tensor that is alive at that address.
    return memoryview((ctypes.c_ubyte * count).from_address(address)).cast("B")


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor; the caller keeps the tensor alive while it uses them."""
    if not tensor.is_contiguous() or not tensor.is_cpu:
        raise ValueError(f"expected a contiguous CPU tensor, found {tensor.stride()} on {tensor.device}.")
    # numpy would do it too but knows no bfloat16 and costs several microseconds per exchange.
    return _bytes_at(tensor.data_ptr(), tensor.nbytes)


def flat(tensor: Tensor) -> tuple[Tensor, memoryview]:
    """The tensor, or a contiguous copy where its rows do not lie one after another, and its bytes as in `raw`."""
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    if not tensor.is_cpu:
        raise ValueError(f"expected a CPU tensor, found one on {tensor.device}.")
    return tensor, _bytes_at(tensor.data_ptr(), tensor.nbytes)


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a name that Shape or a dtype code allows."""
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


class Buffer:
    """Room for `rows` rows of hidden states and of router logits, allocated once."""

    __slots__ = ("_cut", "_logits", "_room", "_rows", "_shape", "hidden_bytes", "router_bytes")

    def __init__(self, shape: Shape, rows: int, router: bool = True) -> None:
        hidden = torch.empty((rows, shape.hidden), dtype=torch_dtype(shape.dtype))
        room = torch.empty(rows * shape.router * ROUTER_BYTES if router else 0, dtype=torch.uint8)
        self._set(shape, hidden, room)
        self.hidden_bytes, self.router_bytes = raw(hidden), raw(room)

    @classmethod
    def over(cls, shape: Shape, hidden: Tensor, router: Tensor) -> Buffer:
        """A buffer in bytes that are there already; its tensors keep them alive."""
        made = cls.__new__(cls)
        made._set(shape, view_as(hidden, shape.dtype, shape.hidden), router)
        made.hidden_bytes, made.router_bytes = raw(hidden), raw(router)
        return made

    def _set(self, shape: Shape, hidden: Tensor, room: Tensor) -> None:
        self._shape, self._rows, self._room = shape, hidden, room
        self._logits: dict[int, Tensor] = {}
        self._cut: tuple[int, Tensor] = (hidden.shape[0], hidden)

    def hidden(self, rows: int) -> Tensor:
        """The first rows, [rows, hidden]."""
        if self._cut[0] != rows:  # the layers of a step ask for the same rows again and again
            self._cut = (rows, self._rows[:rows])
        return self._cut[1]

    def router(self, rows: int, code: int) -> Tensor | None:
        """The first rows of logits, [rows, router] in the dtype of `code`; None for code 0."""
        if not code:
            return None
        if code not in self._logits:
            self._logits[code] = view_as(self._room, DTYPE_NAMES[code], self._shape.router)
        return self._logits[code][:rows]


def view_as(room: Tensor, dtype: str, width: int) -> Tensor:
    """Bytes as [any, width] of a dtype."""
    return room.view(torch_dtype(dtype)).view(-1, width)


def router_row_bytes(shape: Shape, code: int) -> int:
    """Bytes of one row of logits, 0 for code 0."""
    return shape.router * DTYPE_BYTES[DTYPE_NAMES[code]] if code else 0
