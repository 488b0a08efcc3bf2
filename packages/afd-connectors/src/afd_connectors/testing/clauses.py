"""Ties tests to the numbered clauses of docs/contract.md, as data that says which transports a test applies to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from afd_connectors.ports import Connector
from afd_connectors.testing.group import Group

PROCESSES, BLOCKING = "processes", "blocking"
_ATTRIBUTE = "contract_clause"
Test = TypeVar("Test", bound=Callable[..., None])


@dataclass(frozen=True, slots=True)
class Clause:
    """What a test quotes. numbers: clauses of docs/contract.md; needs: abilities without which it says nothing."""

    numbers: tuple[str, ...]
    needs: frozenset[str]


class NotApplicable:
    """Stands where a test would be that a transport has no use for; pytest collects nothing from it."""


NOT_APPLICABLE = NotApplicable()


def clause(*numbers: str, needs: Iterable[str] = ()) -> Callable[[Test], Test]:
    """Marks a test of the suite with the clauses that it proves."""

    def mark(test: Test) -> Test:
        setattr(test, _ATTRIBUTE, Clause(numbers, frozenset(needs)))
        return test

    return mark


def abilities(connector: type[Connector]) -> frozenset[str]:
    """What `needs` can name: the connector's features; PROCESSES if its roles can be two processes; BLOCKING if its
    calls return with their results, as all do whose exchanges cannot be captured.
    """
    processes = {PROCESSES} if connector.reach != "threads" else set()
    return connector.features | processes | ({BLOCKING} if "graph" not in connector.features else set())


def standard_tests(suite: type) -> dict[str, Clause | None]:
    """Every test of a suite class by name with what it quotes, None for a test that quotes nothing."""
    found: dict[str, Clause | None] = {}
    for base in reversed(suite.__mro__):
        for name, value in vars(base).items():
            if name.startswith("test_"):
                found[name] = getattr(value, _ATTRIBUTE, None)
    return found


class Clauses(ABC):
    """A part of ConnectorSuite: what its tests need from the whole."""

    @abstractmethod
    def connector(self) -> type[Connector]:
        """The class under test."""

    @abstractmethod
    def group(self, *, attention: int = 1, ffn: int = 1, dtype: str = "bfloat16", **sizes: int) -> Group:
        """A deployment of it."""

    def can(self, ability: str) -> bool:
        """Whether the class under test declares a feature, or is PROCESSES or BLOCKING."""
        return ability in abilities(self.connector())
