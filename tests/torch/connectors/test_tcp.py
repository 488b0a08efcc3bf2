"""tcp keeps the contract."""

from afd_connectors.testing import ConnectorSuite


class TestTcp(ConnectorSuite):
    """CPU tensors between processes."""

    name = "tcp"
