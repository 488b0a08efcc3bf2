"""nccl-p2p keeps the contract, over a library that is stood in for within one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from afd_connectors.ports import Reach
from afd_connectors.testing import ConnectorSuite
from tests.support.doubled import doubled
from tests.support.fake_nccl import FakeNccl, FakeP2p


class InProcess(FakeP2p):
    """The double's queues reach no other process, so nothing of it can be killed."""

    reach: ClassVar[Reach] = "threads"


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(FakeP2p, "library", FakeNccl())
    with doubled(InProcess):
        yield


with doubled(InProcess):

    class TestNcclP2p(ConnectorSuite):
        name = "nccl-p2p"
