"""The few functions of NCCL that are needed, bound to the library that torch itself has loaded."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from afd_connectors.errors import ConnectorError

ID_BYTES = 128
SONAME = "libnccl.so.2"
_BYTE = 1  # ncclUint8: rows are moved, never computed with, so their dtype does not matter
_POINTER = ctypes.c_void_p


class Library(Protocol):
    """What the transport needs of a communication library; errors are ConnectorErrors.

    A communicator is an opaque number; addresses and streams are the raw ones of the device.
    """

    def version(self) -> str:
        """Such as 2.29.7; both roles need the same."""

    def unique_id(self) -> bytes:
        """A new id for one communicator, ID_BYTES long."""

    def join(self, ident: bytes, rank: int, ranks: int) -> int:
        """The communicator of all who join with the same id; waits for them."""

    def send(self, comm: int, peer: int, address: int, count: int, stream: int) -> None:
        """Enqueues `count` bytes to rank `peer`."""

    def recv(self, comm: int, peer: int, address: int, count: int, stream: int) -> None:
        """Enqueues the receipt of `count` bytes from rank `peer`."""

    def abort(self, comm: int) -> None:
        """Ends a communicator and what is enqueued on it; returns once no graph holds it any more."""

    def group_start(self) -> None:
        """What follows on this thread is enqueued together by `group_end`."""

    def group_end(self) -> None:
        """See group_start."""


@contextmanager
def grouped(library: Library) -> Iterator[None]:
    """Calls inside are enqueued together, so that none waits for another."""
    library.group_start()
    try:
        yield
    finally:
        library.group_end()


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * ID_BYTES),)


_SIGNATURES = {
    "ncclGetVersion": (ctypes.POINTER(ctypes.c_int),),
    "ncclGetUniqueId": (ctypes.POINTER(_UniqueId),),
    "ncclCommInitRank": (ctypes.POINTER(_POINTER), ctypes.c_int, _UniqueId, ctypes.c_int),
    "ncclSend": (_POINTER, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, _POINTER, _POINTER),
    "ncclRecv": (_POINTER, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, _POINTER, _POINTER),
    "ncclCommAbort": (_POINTER,),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
}


class Nccl:
    """See Library. Calls release the interpreter, so that another thread can abort what one waits in."""

    def __init__(self, shared: ctypes.CDLL) -> None:
        for name, arguments in _SIGNATURES.items():
            function = getattr(shared, name)
            function.restype, function.argtypes = ctypes.c_int, arguments
        shared.ncclGetErrorString.restype, shared.ncclGetErrorString.argtypes = ctypes.c_char_p, (ctypes.c_int,)
        self._shared = shared
        self._send, self._recv = shared.ncclSend, shared.ncclRecv

    def version(self) -> str:
        """See Library."""
        code = ctypes.c_int()
        self._check(self._shared.ncclGetVersion(ctypes.byref(code)), "ncclGetVersion")
        return f"{code.value // 10000}.{code.value // 100 % 100}.{code.value % 100}"

    def unique_id(self) -> bytes:
        """See Library."""
        ident = _UniqueId()
        self._check(self._shared.ncclGetUniqueId(ctypes.byref(ident)), "ncclGetUniqueId")
        return bytes(ident)

    def join(self, ident: bytes, rank: int, ranks: int) -> int:
        """See Library."""
        comm = _POINTER()
        known = _UniqueId.from_buffer_copy(ident)
        self._check(self._shared.ncclCommInitRank(ctypes.byref(comm), ranks, known, rank), "ncclCommInitRank")
        if not comm.value:
            raise ConnectorError("ncclCommInitRank gave no communicator.")
        return comm.value

    def send(self, comm: int, peer: int, address: int, count: int, stream: int) -> None:
        """See Library."""
        self._check(self._send(address, count, _BYTE, peer, comm, stream), "ncclSend")

    def recv(self, comm: int, peer: int, address: int, count: int, stream: int) -> None:
        """See Library."""
        self._check(self._recv(address, count, _BYTE, peer, comm, stream), "ncclRecv")

    def abort(self, comm: int) -> None:
        """See Library."""
        self._check(self._shared.ncclCommAbort(comm), "ncclCommAbort")

    def group_start(self) -> None:
        """See Library."""
        self._check(self._shared.ncclGroupStart(), "ncclGroupStart")

    def group_end(self) -> None:
        """See Library."""
        self._check(self._shared.ncclGroupEnd(), "ncclGroupEnd")

    def _check(self, code: int, call: str) -> None:
        if code:
            told = self._shared.ncclGetErrorString(code)
            raise ConnectorError(f"{call} failed: {told.decode(errors='replace')}.")


def load() -> Nccl:
    """NCCL as this process has it already, or as its Python package brings it; ConnectorError when there is none."""
    import torch  # noqa: F401  # loads the NCCL that belongs to it, which is then found by its name

    failures = []
    for place in (SONAME, *_packaged()):
        try:
            return Nccl(ctypes.CDLL(place))
        except (OSError, AttributeError) as error:
            failures.append(str(error))
    raise ConnectorError(
        f"the nccl-p2p connector needs {SONAME}, found none: {'; '.join(failures)}; install torch for CUDA."
    )


def _packaged() -> list[str]:
    try:
        spec = find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return []
    places = spec.submodule_search_locations if spec is not None else None
    return [str(Path(place) / "lib" / SONAME) for place in places or ()]
