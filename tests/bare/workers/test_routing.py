"""Simulated routing is off unless asked for, loud when on, and nothing that compares tokens runs with it."""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys

import pytest

from afd_workers import routing
from afd_workers.commands import demo

_SAYS_WHAT_IT_IMPORTED = """
import sys
from afd_workers import routing
routing.offer_if_asked()
print(sorted(name for name in sys.modules if name.split(".")[0] in ("vllm", "torch", "afd_models")))
"""


@pytest.mark.parametrize("strategy", ["", "uniform_random"])
def test_unasked_nothing_is_imported(strategy: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _SAYS_WHAT_IT_IMPORTED],
        env={"PYTHONPATH": ":".join(sys.path), routing.VARIABLE: strategy},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert ran.stdout.strip() == "[]"


def test_it_is_loud_when_on_and_silent_when_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(routing.VARIABLE, raising=False)
    with caplog.at_level(logging.WARNING, "afd.workers"):
        routing.warn()
        assert not caplog.records
        monkeypatch.setenv(routing.VARIABLE, routing.BALANCED)
        routing.warn()
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "VLLM_MOE_ROUTING_SIMULATION_STRATEGY=balanced: " in record.getMessage()
    assert "all tokens are meaningless" in record.getMessage()


@pytest.mark.parametrize("strategy", ["balanced", "uniform_random"])
def test_the_demo_refuses_to_compare_meaningless_tokens(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    monkeypatch.setenv(routing.VARIABLE, strategy)
    with pytest.raises(ValueError, match=rf"^Expected the model's own routing for afd demo.*={strategy}: unset it, "):
        demo.run(argparse.Namespace(tokens=8, json=False, start_timeout=1.0), ())


def test_a_strategy_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", "balanced", "uniform_random"):
        monkeypatch.setenv(routing.VARIABLE, name)
        routing.check(("normal_routing", "uniform_random"))
    monkeypatch.setenv(routing.VARIABLE, "unifrom")
    routing.check(())
    with pytest.raises(
        ValueError,
        match=r"name one of balanced, normal_routing, uniform_random, found 'unifrom': choose one of these or",
    ):
        routing.check(("normal_routing", "uniform_random"))


def test_strategies_are_read_from_vllms_text(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "class S:\n    _routing_strategies: dict[str, R] = {'one': R(), 'two': R()}\n"
    monkeypatch.setattr("afd_compat.source.Tree.read", lambda _tree, _module: text)
    monkeypatch.delenv(routing.VARIABLE, raising=False)
    assert routing.written() == routing.registered() == ()
    monkeypatch.setenv(routing.VARIABLE, "one")
    assert routing.written() == ("one", "two")
    monkeypatch.setattr("afd_compat.source.Tree.read", lambda _tree, _module: None)
    assert routing.written() == ()


def test_roles_that_route_differently_are_not_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(routing.VARIABLE, raising=False)
    assert routing.engine_version("0.30.0") == "0.30.0"
    monkeypatch.setenv(routing.VARIABLE, "balanced")
    assert routing.engine_version("0.30.0") == "0.30.0 with simulated routing (balanced)"
