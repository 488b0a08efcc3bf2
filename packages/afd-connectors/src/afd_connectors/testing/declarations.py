"""Clauses about what a transport says of itself, which decides how it is chosen and which tests it gets."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from afd_connectors.ports import FEATURES, Reach
from afd_connectors.registry import names, resolve
from afd_connectors.testing.clauses import Clauses, clause


class DeclarationClauses(Clauses):
    """Declarations."""

    @clause("9.2")
    def test_declarations(self) -> None:
        """Name, features, devices and reach are what the registry and this suite can work with."""
        connector = self.connector()
        assert connector.name in names()
        assert connector.features <= FEATURES
        assert connector.reach in get_args(Reach)
        assert connector.devices
        for device in connector.devices:
            assert resolve(connector.name, device) is connector
        with pytest.raises(ValueError, match="found device 'abacus'"):
            resolve(connector.name, "abacus")

    @clause("9.3")
    def test_unknown_option(self) -> None:
        """Options are checked when the connector is built."""
        with self.group() as group, pytest.raises(ValueError, match="no_such_option"):
            group.build("ffn", settings=replace(group.settings, extra={"no_such_option": 1}))

    @clause("9.4")
    def test_bytes_needed(self) -> None:
        """Memory is known before anything is opened, and does not shrink when the shape grows."""
        with self.group() as small, self.group(tokens=4096, hidden=512) as large:
            for role in ("attention", "ffn"):
                assert 0 <= small.build(role).bytes_needed() <= large.build(role).bytes_needed()
