"""The suite and docs/contract.md name the same clauses, and a subclass gets the tests that it has to get."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from afd_connectors import registry
from afd_connectors.ports import FEATURES
from afd_connectors.testing import ConnectorSuite
from afd_connectors.testing.clauses import BLOCKING, NOT_APPLICABLE, PROCESSES, abilities, standard_tests
from afd_connectors.transports.loopback import Loopback

pytest_plugins = ["pytester"]
CONTRACT = Path(__file__).parents[3] / "docs" / "contract.md"
QUOTED = standard_tests(ConnectorSuite)


class Threads(Loopback):
    """A transport that declares as little as it may."""

    name = "threads"
    reach = "threads"
    features = frozenset({"variable_tokens"})


class Network(Loopback):
    """One that declares more, whether it holds or not."""

    name = "network"
    reach = "network"
    features = frozenset({"variable_tokens", "reconnect"})


class Device(Loopback):
    """One whose calls only enqueue, whether it holds or not."""

    name = "device"
    reach = "host"
    features = frozenset({"variable_tokens", "reconnect", "graph"})


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes them known to the registry."""
    for connector in (Threads, Network, Device):
        monkeypatch.setitem(registry.BUILTIN, connector.name, f"{__name__}:{connector.__name__}")
    loaded = {connector.name: connector for connector in (Threads, Network, Device)}
    native = registry.find
    monkeypatch.setattr(registry, "find", lambda name: loaded.get(name) or native(name))


def test_every_clause_has_a_test_and_every_test_a_clause() -> None:
    clauses = set(re.findall(r"^- \*\*(\d+\.\d+)\*\* ", CONTRACT.read_text(), re.MULTILINE))
    assert clauses
    assert [name for name, quoted in QUOTED.items() if quoted is None or not quoted.numbers] == []
    assert {number for quoted in QUOTED.values() if quoted for number in quoted.numbers} == clauses


def test_needs_are_declarable() -> None:
    assert {need for quoted in QUOTED.values() if quoted for need in quoted.needs} <= FEATURES | {PROCESSES, BLOCKING}


@pytest.mark.parametrize("name", sorted(set(registry.BUILTIN) - {"loopback"}))
def test_built_in_transports_declare_that_roles_are_processes(name: str) -> None:
    """Or they would quietly miss the tests that kill and stop processes."""
    assert registry.find(name).reach != "threads"


def test_abilities() -> None:
    assert abilities(Threads) == {"variable_tokens", BLOCKING}
    assert abilities(Network) == {"variable_tokens", "reconnect", PROCESSES, BLOCKING}
    assert abilities(Device) == {"variable_tokens", "reconnect", "graph", PROCESSES}


@pytest.mark.usefixtures("known")
def test_declarations_decide_which_tests_there_are() -> None:
    class Few(ConnectorSuite):
        name = "threads"

    class All(Few):
        name = "network"

    class Enqueuing(Few):
        name = "device"

    needs = {name: quoted.needs for name, quoted in QUOTED.items() if quoted}
    assert PROCESSES in needs["test_ffn_killed"] & needs["test_ffn_stops_briefly"]
    for suite, able in ((Few, abilities(Threads)), (All, abilities(Network)), (Enqueuing, abilities(Device))):
        for name, needed in needs.items():
            assert (getattr(suite, name) is NOT_APPLICABLE) is not (needed <= able)
        assert suite.overridden == ()
    assert [name for name in QUOTED if getattr(All, name) is getattr(Enqueuing, name) is NOT_APPLICABLE] == []


class Mixin:
    def test_close_twice(self) -> None:
        """In front of the suite."""


def test_overriding_is_noticed() -> None:
    class Direct(ConnectorSuite):
        test_reopen = None
        test_one_of_its_own = None

        def group(self) -> None:
            """Another deployment."""

    class Below(Direct):
        def test_nothing_is_overridden(self) -> None:
            """The guard."""

    class Mixed(Mixin, ConnectorSuite):
        pass

    class Plain(ConnectorSuite):
        name = "loopback"
        device = "cpu"

    for suite, names in (
        (Direct, {"test_reopen", "group"}),
        (Below, {"test_reopen", "group", "test_nothing_is_overridden"}),
        (Mixed, {"test_close_twice"}),
    ):
        assert set(suite.overridden) == names
        with pytest.raises(AssertionError, match=f"{suite.__name__} redefines .*{max(names)}.* expected an empty"):
            ConnectorSuite.test_nothing_is_overridden(suite())
        assert suite.test_nothing_is_overridden is ConnectorSuite.test_nothing_is_overridden
    assert Plain.overridden == ()
    Plain().test_nothing_is_overridden()


def test_what_the_transport_can_do_cannot_be_taken_away() -> None:
    class Sly(ConnectorSuite):
        name = "loopback"
        test_reopen = NOT_APPLICABLE

    assert Sly.test_reopen is ConnectorSuite.test_reopen


def test_overriding_fails_a_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from afd_connectors.testing import ConnectorSuite

        class TestSly(ConnectorSuite):
            name = "loopback"

            def test_values_round_trip(self):
                pass
        """
    )
    result = pytester.runpytest("-k", "overridden or round_trip or wrong_role")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*TestSly redefines test_values_round_trip of ConnectorSuite*"])
