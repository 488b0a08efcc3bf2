"""What is NCCL's own in nccl-p2p: versions, and communicators that come early, late or never."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from afd_connectors.deadline import Deadline
from afd_connectors.errors import DeadlineExceeded, HandshakeRefused
from afd_connectors.shape import Shape
from afd_connectors.testing.group import Group, within
from afd_connectors.transports.nccl import meeting
from afd_connectors.transports.nccl.link import Issuing
from tests.support.fake_nccl import FakeDevice, FakeNccl, FakeP2p
from tests.support.stepped import LAYERS


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> type[FakeP2p]:
    monkeypatch.setattr(FakeP2p, "library", FakeNccl())
    return FakeP2p


@pytest.fixture
def deploy(kind: type[FakeP2p]) -> Callable[..., Group]:
    def make(attention: int = 1, ffn: int = 1, stages: int = 2, **extra: object) -> Group:
        shape = Shape(16, 8, "bfloat16", LAYERS, stages)
        return Group(kind, shape, attention=attention, ffn=ffn, extra=extra)

    return make


def test_different_libraries_are_refused_by_both(deploy, kind, caplog: pytest.LogCaptureFixture) -> None:
    with deploy() as group:
        group.start_ffn()
        shared = kind.library

        class Newer(FakeP2p):
            library = FakeNccl("9.9.10")

        group.connector = Newer
        with pytest.raises(HandshakeRefused, match=r"attention rank has NCCL 9.9.10, FFN rank 0 has NCCL '9.9.9'"):
            group.open_attention()
        assert within(5, lambda: "attention rank 0 does not join" in caplog.text)
        assert kind.library is shared


def test_an_ffn_rank_makes_its_first_communicator_before_anybody_waits_for_it(deploy, kind) -> None:
    with deploy() as group:
        group.start_ffn()
        assert within(5, lambda: len(kind.library.aborted) == 1)
        group.forward(group.open_attention(), 1, 3)


def test_communicators_that_come_too_late_are_ended() -> None:
    """Whoever waited for them is gone, so nobody else would."""
    library, slow = FakeNccl(), threading.Event()
    native, ended = library.join, []

    def join(ident: bytes, rank: int, ranks: int) -> int:
        assert slow.wait(10)
        return native(ident, rank, ranks)

    library.join, library.abort = join, ended.append  # type: ignore[method-assign]
    issuing = Issuing(library, FakeDevice())  # type: ignore[arg-type]
    idents = [library.unique_id() for _ in range(2)]
    with pytest.raises(DeadlineExceeded, match="were not there within"):
        meeting._join(issuing, idents, 0, Deadline(0.1))
    slow.set()
    meeting._join(Issuing(library, FakeDevice()), idents, 1, Deadline(10))  # type: ignore[arg-type]
    assert within(10, lambda: len(ended) == 2)
