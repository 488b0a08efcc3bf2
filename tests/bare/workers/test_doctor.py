"""`afd doctor` says what is installed, what was accepted by hand, and whether AFD would start."""

from __future__ import annotations

import argparse
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import afd_compat
import afd_workers
from afd_compat.fingerprint import fingerprint
from afd_compat.patches.config_validation import choose_role
from afd_workers.commands import doctor as doctor_command

SCRIPT = """
import sys
from afd_compat import registry
from afd_compat.patches.config_validation import choose_role
registry.declared = lambda: (choose_role,)
from afd_workers.cli import main
sys.exit(main(["doctor"]))
"""
METHOD = "    def create_engine_config(\n        self,\n{}        usage_context=None,\n    ): ...\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A vLLM with the one target that the script declares."""
    (tmp_path / "vllm" / "engine").mkdir(parents=True)
    for name in ("vllm/__init__.py", "vllm/engine/__init__.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "vllm" / "_version.py").write_text("__version__ = '0.30.0'\n")
    (tmp_path / "vllm" / "engine" / "arg_utils.py").write_text(
        "class EngineArgs:\n" + METHOD.format("        extra,\n")
    )
    return tmp_path


def doctor(folder: Path, **env: str) -> tuple[int, str]:
    """(status, output) in a fresh interpreter that finds `folder` first."""
    paths = [folder, *(Path(module.__file__).parents[1] for module in (afd_compat, afd_workers))]
    rest = [path for path in sys.path if path and "site-packages" not in path]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {[str(p) for p in paths] + rest!r}\n{SCRIPT}"],
        env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert not done.stderr or "WARNING" in done.stderr, done.stderr
    return done.returncode, done.stdout


def test_drift_is_named_with_both_hashes_and_the_command(folder: Path) -> None:
    status, said = doctor(folder)
    assert status == 1
    assert "vLLM: 0.30.0" in said
    assert said.count("sig:") == 2
    assert choose_role.pin("0.30.0") in said
    text = (folder / "vllm" / "engine" / "arg_utils.py").read_text()
    assert str(fingerprint(text, "EngineArgs.create_engine_config", "sig")) in said
    assert "afd patches --against" in said


def test_what_was_accepted_by_hand_is_shown(folder: Path) -> None:
    status, said = doctor(folder, AFD_ALLOW_DRIFT=choose_role.target)
    assert status == 0
    assert f"AFD_ALLOW_DRIFT accepts: {choose_role.target}" in said
    assert "patches: 0 of 1 fit" in said


def test_a_version_out_of_range_is_said_once(folder: Path) -> None:
    (folder / "vllm" / "_version.py").write_text("__version__ = '0.29.0'\n")
    status, said = doctor(folder)
    assert status == 1
    assert f"it is 0.29.0, and {choose_role.vllm} was tested" in said


def test_a_plugin_that_vllm_leaves_out_is_noticed(folder: Path) -> None:
    for name, said in (("other", "left out by VLLM_PLUGINS=other"), ("afd,other", "found by vLLM")):
        output = doctor(folder, VLLM_PLUGINS=name)[1]
        assert f"plugin: {said}" in output or "plugin: not found by vLLM" in output


def test_a_plugin_that_vllm_leaves_out_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """An "afd" section would be ignored without a word."""
    point = importlib.metadata.EntryPoint("afd", "afd_workers.plugin:register", "vllm.general_plugins")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: (point,))
    assert doctor_command._plugin() == "found by vLLM"
    monkeypatch.setenv("VLLM_PLUGINS", "x")
    assert doctor_command._plugin() == "left out by VLLM_PLUGINS=x; add afd to it"
    monkeypatch.setattr("afd_compat.registry.declared", lambda: ())
    assert doctor_command.run(argparse.Namespace(), ()) == 1
