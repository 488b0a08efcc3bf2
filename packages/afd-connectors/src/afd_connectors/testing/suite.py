"""What every transport must do; each test is one clause of the contract."""

from __future__ import annotations

from typing import ClassVar

from afd_connectors.ports import Connector
from afd_connectors.registry import resolve
from afd_connectors.shape import Shape
from afd_connectors.testing.exchanges import ExchangeClauses
from afd_connectors.testing.failures import FailureClauses
from afd_connectors.testing.group import Group
from afd_connectors.testing.rendezvous import RendezvousClauses


class ConnectorSuite(ExchangeClauses, RendezvousClauses, FailureClauses):
    """Subclass it under a name that starts with Test and set `name`; nothing else is needed.

    device: torch device type to resolve the name for; options: settings.extra for every port.
    """

    name: ClassVar[str]
    device: ClassVar[str] = "cpu"
    options: ClassVar[dict[str, object]] = {}

    def connector(self) -> type[Connector]:
        """The class under test."""
        return resolve(self.name, self.device)

    def group(self, *, attention: int = 1, ffn: int = 1, dtype: str = "bfloat16", **sizes: int) -> Group:
        """A deployment with a small shape: 16 rows of 8 elements, 3 layers, 2 stages."""
        bounds = {"tokens": 16, "hidden": 8, "layers": 3, "stages": 2, "router": 0} | sizes
        shape = Shape(bounds["tokens"], bounds["hidden"], dtype, bounds["layers"], bounds["stages"], bounds["router"])
        return Group(self.connector(), shape, attention=attention, ffn=ffn, extra=self.options)
