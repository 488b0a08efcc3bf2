"""Nothing that arrives can be code, strangers are warned of, and secrets show nowhere."""

from __future__ import annotations

import ast
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import afd_connectors
from afd_connectors import Facts, Layout, Settings
from afd_connectors.agreement import refusal
from afd_connectors.handshake import Identity, proof_of
from afd_connectors.listener import Listener

FACTS = Facts("0.1.0", "0.30.0", "digest", "bfloat16", 128, 27, 0, "ffn", 1, (1, 2), 1, 1)
SECRET = "correct horse"
SOURCES = sorted(Path(afd_connectors.__file__).parent.rglob("*.py"))
# What turns bytes into objects or code of the sender's choice.
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "yaml", "joblib", "code"}
CALLS = {"eval", "exec", "compile", "__import__"}
METHODS = {("torch", "load"), ("torch", "save"), ("numpy", "load"), ("np", "load")}


def identity(role: str, secret: str | None = SECRET) -> Identity:
    return Identity(Layout(role, 0, 1, 1), FACTS, secret)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_nothing_that_arrives_is_unpickled_or_run(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not MODULES & {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in MODULES
        elif isinstance(node, ast.Call):
            called = node.func
            assert not (isinstance(called, ast.Name) and called.id in CALLS), f"line {node.lineno}"
            if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                assert (called.value.id, called.attr) not in METHODS, f"line {node.lineno}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_proofs_and_secrets_are_compared_in_constant_time(path: Path) -> None:
    """No == where a proof or secret stands on either side; whether there is one at all may be asked with `is`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
            sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
            guarded = any(word in side for word in ("proof", "secret") for side in sides)
            assert not guarded or "''" in sides, f"line {node.lineno}: {ast.unparse(node)}"


def test_loopback_is_the_default_bind() -> None:
    assert Settings().host == "127.0.0.1"


@pytest.mark.parametrize(
    ("host", "secret", "warns"),
    [
        ("127.0.0.1", None, False),
        ("::1", None, False),
        ("localhost", None, False),
        ("0.0.0.0", None, True),
        ("::", None, True),
        ("0.0.0.0", SECRET, False),
    ],
)
def test_only_an_open_bind_without_a_secret_warns(
    host: str, secret: str | None, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "afd.connectors")
    Listener((host, 0), identity("ffn", secret), lambda _: None, lambda _: None).close()
    assert ("without a secret; set one" in caplog.text) is warns


def test_no_representation_shows_the_secret() -> None:
    for shown in (repr(Settings(secret=SECRET)), repr(identity("ffn"))):
        assert SECRET not in shown


@given(st.lists(st.tuples(*[st.text(alphabet='a|",\\[]', max_size=4)] * 4), min_size=2, max_size=2, unique=True))
def test_different_parts_have_different_proofs(parts: list[tuple[str, str, str, str]]) -> None:
    """No choice of nonce or token makes a proof of one kind pass for another."""
    first, second = (proof_of(SECRET, *each) for each in parts)
    assert first != second


def test_a_proof_depends_on_secret_label_nonces_and_token() -> None:
    base = proof_of(SECRET, "ffn", "a", "f", "t")
    others = [
        proof_of(None, "ffn", "a", "f", "t"),
        proof_of(SECRET + "x", "ffn", "a", "f", "t"),
        proof_of(SECRET, "attention", "a", "f", "t"),
        proof_of(SECRET, "data", "a", "f", "t"),
        proof_of(SECRET, "ffn", "f", "a", "t"),
        proof_of(SECRET, "ffn", "a", "f", "u"),
    ]
    assert len({base, *others}) == 7


@pytest.mark.parametrize(("attention", "ffn"), [("aaaaaa", "bbbbbb"), ("aaaaaa", None), (None, "bbbbbb")])
def test_no_sentence_shows_a_secret(attention: str | None, ffn: str | None) -> None:
    sentence = refusal(FACTS, FACTS, ffn, attention, 0, 0) or ""
    assert "aaaaaa" not in sentence
    assert "bbbbbb" not in sentence
    assert "secret" in sentence
