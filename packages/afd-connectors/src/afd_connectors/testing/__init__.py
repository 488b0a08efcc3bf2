"""The contract as tests: a transport's test file is an empty subclass of ConnectorSuite."""

from afd_connectors.testing.free import free_port
from afd_connectors.testing.group import Group
from afd_connectors.testing.suite import ConnectorSuite

__all__ = ["ConnectorSuite", "Group", "free_port"]
