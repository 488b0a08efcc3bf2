"""What the clauses of the contract need from the suite that they are part of."""

from __future__ import annotations

from abc import ABC, abstractmethod

from afd_connectors.ports import Connector
from afd_connectors.testing.group import Group


class Clauses(ABC):
    """A part of ConnectorSuite."""

    @abstractmethod
    def connector(self) -> type[Connector]:
        """The class under test."""

    @abstractmethod
    def group(self, *, attention: int = 1, ffn: int = 1, dtype: str = "bfloat16", **sizes: int) -> Group:
        """A deployment of it."""
