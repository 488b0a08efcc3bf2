"""The contract of the shared-memory transport."""

from __future__ import annotations

from afd_connectors.testing import ConnectorSuite


class TestShm(ConnectorSuite):
    name = "shm"
