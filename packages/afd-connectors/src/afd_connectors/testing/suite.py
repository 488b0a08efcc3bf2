"""What every transport must do; each test proves clauses of docs/contract.md and quotes their numbers."""

from __future__ import annotations

from inspect import getattr_static
from typing import ClassVar

from afd_connectors.ports import Connector
from afd_connectors.registry import resolve
from afd_connectors.shape import Shape
from afd_connectors.testing.attention_kills import AttentionKillClauses
from afd_connectors.testing.clauses import NOT_APPLICABLE, abilities, clause, standard_tests
from afd_connectors.testing.closing import ClosingClauses
from afd_connectors.testing.declarations import DeclarationClauses
from afd_connectors.testing.enqueued import EnqueuedClauses
from afd_connectors.testing.errors import ErrorClauses
from afd_connectors.testing.failures import FailureClauses
from afd_connectors.testing.frames import FrameClauses
from afd_connectors.testing.group import Group
from afd_connectors.testing.kills import KillClauses
from afd_connectors.testing.rendezvous import RendezvousClauses
from afd_connectors.testing.stages import StageClauses
from afd_connectors.testing.stops import StopClauses
from afd_connectors.testing.topology import TopologyClauses
from afd_connectors.testing.values import ValueClauses
from afd_connectors.testing.void import VoidClauses
from afd_connectors.testing.void_kills import VoidKillClauses

_GUARD = "test_nothing_is_overridden"
_MACHINERY = ("connector", "group", "can")


class ConnectorSuite(
    ValueClauses,
    StageClauses,
    TopologyClauses,
    RendezvousClauses,
    FailureClauses,
    KillClauses,
    AttentionKillClauses,
    StopClauses,
    ClosingClauses,
    ErrorClauses,
    FrameClauses,
    EnqueuedClauses,
    VoidClauses,
    VoidKillClauses,
    DeclarationClauses,
):
    """Subclass it under a name that starts with Test and set `name`; nothing else is needed, or allowed.

    device: torch device type to resolve the name for; options: settings.extra for every port;
    overridden: what a subclass redefines of the suite, which fails a test of its own. Tests of abilities that
    the transport does not declare are not collected.
    """

    name: ClassVar[str]
    device: ClassVar[str] = "cpu"
    options: ClassVar[dict[str, object]] = {}
    overridden: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        standard = standard_tests(ConnectorSuite)
        fixed = {name: getattr_static(ConnectorSuite, name) for name in (*standard, *_MACHINERY)}
        allowed = {id(NOT_APPLICABLE)}
        cls.overridden = tuple(
            name for name, own in fixed.items() if id(getattr_static(cls, name)) not in allowed | {id(own)}
        )
        setattr(cls, _GUARD, fixed[_GUARD])  # the one test that cannot be taken away
        if not hasattr(cls, "name"):
            return
        able = abilities(resolve(cls.name, cls.device))
        for name, quoted in standard.items():
            if name not in cls.overridden and quoted is not None:
                wanted = fixed[name] if quoted.needs <= able else NOT_APPLICABLE
                if getattr_static(cls, name) is not wanted:
                    setattr(cls, name, wanted)

    @clause("9.1")
    def test_nothing_is_overridden(self) -> None:
        """A transport cannot pass by leaving out what it cannot do."""
        assert not self.overridden, (
            f"{type(self).__name__} redefines {', '.join(self.overridden)} of ConnectorSuite, expected an empty "
            "subclass; put further tests under other names and declare what the transport cannot do as data."
        )

    def connector(self) -> type[Connector]:
        """The class under test."""
        return resolve(self.name, self.device)

    def group(self, *, attention: int = 1, ffn: int = 1, dtype: str = "bfloat16", **sizes: int) -> Group:
        """A deployment with a small shape: 16 rows of 8 elements, 3 layers, 2 stages."""
        bounds = {"tokens": 16, "hidden": 8, "layers": 3, "stages": 2, "router": 0} | sizes
        shape = Shape(bounds["tokens"], bounds["hidden"], dtype, bounds["layers"], bounds["stages"], bounds["router"])
        return Group(self.connector(), shape, attention=attention, ffn=ffn, extra=self.options, device=self.device)
