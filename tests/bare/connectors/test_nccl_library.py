"""The binding to NCCL: every call passes what NCCL's header declares, and every error code becomes a sentence."""

from __future__ import annotations

import ctypes

import pytest

from afd_connectors.errors import ConnectorError
from afd_connectors.transports.nccl import library
from afd_connectors.transports.nccl.library import ID_BYTES, Nccl, grouped

POINTER = ctypes.c_void_p


class Told:
    """A callback cannot return a string that it owns."""

    def __call__(self, code: int) -> bytes:
        return b"code %d" % code


class Shared:
    """A library whose functions have C's calling convention and write down their arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.code = 0
        for name, arguments in library._SIGNATURES.items():
            setattr(self, name, ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(self._function(name)))
        self.ncclGetErrorString = Told()

    def _function(self, name: str):
        def call(*given: object) -> int:
            if name == "ncclGetVersion":
                given[0][0] = 22907
            elif name == "ncclGetUniqueId":
                ctypes.memset(given[0], 7, ID_BYTES)
            elif name == "ncclCommInitRank":
                given[0][0] = 4096
                given = (*given[1:2], bytes(given[2]), *given[3:])
            self.calls.append((name, *given))
            return self.code

        return call


def test_each_call_passes_what_it_was_given() -> None:
    shared = Shared()
    nccl = Nccl(shared)  # type: ignore[arg-type]
    assert nccl.version() == "2.29.7"
    ident = nccl.unique_id()
    assert ident == b"\x07" * ID_BYTES
    comm = nccl.join(ident, 1, 2)
    assert comm == 4096
    with grouped(nccl):
        nccl.send(comm, 1, 1 << 47, 3 << 33, 0)
        nccl.recv(comm, 0, 512, 256, 99)
    nccl.abort(comm)
    assert shared.calls[2:] == [
        ("ncclCommInitRank", 2, ident, 1),
        ("ncclGroupStart",),
        ("ncclSend", 1 << 47, 3 << 33, 1, 1, 4096, None),
        ("ncclRecv", 512, 256, 1, 0, 4096, 99),
        ("ncclGroupEnd",),
        ("ncclCommAbort", 4096),
    ]


def test_an_error_code_is_told_in_the_librarys_words() -> None:
    shared = Shared()
    nccl = Nccl(shared)  # type: ignore[arg-type]
    shared.code = 3
    with pytest.raises(ConnectorError, match=r"ncclSend failed: code 3\."):
        nccl.send(1, 0, 1, 1, 0)


def test_a_group_is_ended_whatever_happens_inside() -> None:
    shared = Shared()
    nccl = Nccl(shared)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError), grouped(nccl):
        raise ZeroDivisionError
    assert [call[0] for call in shared.calls] == ["ncclGroupStart", "ncclGroupEnd"]
