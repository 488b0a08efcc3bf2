"""loopback keeps the contract."""

from afd_connectors.testing import ConnectorSuite


class TestLoopback(ConnectorSuite):
    """The reference."""

    name = "loopback"
