"""nvlink keeps the contract, on memory and kernels that are stood in for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from afd_connectors.testing import ConnectorSuite
from tests.support.doubled import doubled
from tests.support.fake_nvlink import FakeNvlink


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    with doubled(FakeNvlink):
        yield


with doubled(FakeNvlink):

    class TestNvlink(ConnectorSuite):
        name = "nvlink"
