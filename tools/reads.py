"""What vLLM's loader reads of a checkpoint: files it opens, tensors it materialises, pages that come from disk."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class Reads:
    """files: names of those opened; tensors: bytes of each tensor that was materialised."""

    files: set[str] = field(default_factory=set)
    tensors: dict[str, int] = field(default_factory=dict)


@contextmanager
def recorded() -> Iterator[Reads]:
    """Records what vLLM's lazy safetensors iterator does meanwhile."""
    from vllm.model_executor.model_loader import weight_utils

    reads, native = Reads(), weight_utils.safe_open

    class Recording:
        def __init__(self, file: str, framework: str) -> None:
            self._open = native(file, framework=framework)
            reads.files.add(Path(file).name)

        def __enter__(self) -> Recording:
            self._file = self._open.__enter__()
            return self

        def __exit__(self, *error: object) -> None:
            self._open.__exit__(*error)

        def keys(self) -> list[str]:
            return list(self._file.keys())

        def get_tensor(self, name: str) -> Tensor:
            tensor: Tensor = self._file.get_tensor(name)
            reads.tensors[name] = tensor.nbytes
            return tensor

    weight_utils.safe_open = Recording
    try:
        yield reads
    finally:
        weight_utils.safe_open = native


def forget(files: Iterable[Path]) -> None:
    """Takes the files' pages out of the page cache, as far as the file system does that."""
    for file in files:
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident(files: Iterable[Path]) -> int:
    """Bytes of the files that are in the page cache now, by whole pages."""
    return sum(_resident(file) for file in files)


def _resident(file: Path) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    size = file.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    with file.open("r+b") as stream, mmap.mmap(stream.fileno(), size) as mapped:
        marks = (ctypes.c_ubyte * pages)()
        start = ctypes.c_char.from_buffer(mapped)
        try:
            if library.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), marks):
                raise OSError(ctypes.get_errno(), f"mincore of {file} failed")
        finally:
            del start
    return sum(mark & 1 for mark in marks) * mmap.PAGESIZE
