"""What happens on a vLLM that is not the tested one, with AFD configured and without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    import subprocess

START = """
import sys, afd_compat.install as afd, toy_patches as t
guard = t.declare("Thing.static", lambda native, a: (afd.require(), native(a))[1], guard=True)
done = afd.install([t.plain, t.method, guard])
from vllm import toy, holder
t.on = True
"""
SILENT = "assert toy.plain(1) == holder.alias(1) == 3 and toy.Thing().method(1) == (False, 1, 0)\n"
REFUSED = "try: toy.Thing.static(1)\nexcept RuntimeError as error: print(error)\nelse: raise AssertionError\n"


class Toy(Protocol):
    """The fixture of this folder."""

    def write(self, name: str, text: str) -> None: ...

    def start(self, *parts: str, **env: str) -> subprocess.CompletedProcess[str]: ...

    def run(self, *parts: str, **env: str) -> str: ...


@pytest.fixture
def edited(toy: Toy) -> Toy:
    """A vLLM of a tested version in which somebody edited one signature by hand."""
    text = toy.run("print(open('vllm/toy.py').read())")
    toy.write("vllm/toy.py", text.replace("def method(self, a, ", "def method(self, a, extra=0, "))
    return toy


def test_the_tested_text_is_patched(toy: Toy) -> None:
    toy.run(
        START,
        """
        assert toy.plain(1) == ('ours', 3) and toy.Thing.static(1) == 1 and not done.problems()
        """,
    )


def test_an_edited_target_is_refused_with_both_hashes_and_the_command(edited: Toy) -> None:
    said = edited.run(START, SILENT, REFUSED)
    assert "vllm.toy:Thing.method" in said
    assert said.count("sig:") == 2
    assert "afd patches --against WHEEL" in said
    assert said.strip().count("\n") == 0
    assert "vllm.toy:plain" not in said


def test_without_a_request_nothing_is_said(edited: Toy) -> None:
    assert (
        edited.run(
            START,
            """
        t.on = False
        """,
            SILENT,
            """
        assert toy.Thing.static(1) == 1
        """,
        )
        == ""
    )


@pytest.mark.parametrize("version", ["0.29.1", "0.31.0", "0.31.0.dev4", "1.0", "what"])
def test_an_untested_version_is_refused_with_the_range(toy: Toy, version: str) -> None:
    toy.write("vllm/_version.py", f"__version__ = version = {version!r}\n")
    said = toy.run(START, SILENT, REFUSED)
    assert version in said
    assert said.strip().count("\n") == 0
    assert "afd patches --against WHEEL" in said
    if version != "what":
        assert f"it is {version}, and >=0.30,<0.31 was tested" in said
        assert said.count(version) == said.count(">=0.30") == 1


@pytest.mark.parametrize("version", ["0.30.0", "0.30.0+cpu", "0.30.1.dev3", "0.30.0.dev7+gabc", "0.30.1rc1", "0.30.2"])
def test_builds_of_a_tested_release_pass(toy: Toy, version: str) -> None:
    toy.write("vllm/_version.py", f"__version__: str\n__version__ = version = {version!r}\n")
    toy.run(
        START,
        """
        afd.require()
        assert toy.plain(1) == ('ours', 3)
        """,
    )


@pytest.mark.parametrize("text", ["", "def plain(:\n", "class Thing: pass\n"])
def test_a_target_that_is_gone_cannot_be_allowed(toy: Toy, text: str) -> None:
    toy.write("vllm/toy.py", text)
    code = "import afd_compat.install as afd, toy_patches as t\nafd.install([t.method])\n"
    said = toy.run(
        code,
        """
        try: afd.require()
        except RuntimeError as error: print(error)
        else: raise AssertionError
        """,
        AFD_ALLOW_DRIFT="vllm.toy:Thing.method",
    )
    assert "vllm.toy:Thing.method" in said


def test_drift_is_allowed_per_target_and_logged_once(edited: Toy) -> None:
    code = START + "assert toy.Thing().method(1)[0] == 'ours' == toy.plain(1)[0]\nafd.require()\nafd.require()\n"
    said = edited.run(code, AFD_ALLOW_DRIFT="vllm.toy:other, vllm.toy:Thing.method")
    assert said.count("AFD_ALLOW_DRIFT") == 1
    assert "vllm.toy:Thing.method" in said
    assert edited.start(code, AFD_ALLOW_DRIFT="vllm.toy:plain").returncode != 0


def test_without_vllm_nothing_happens(toy: Toy) -> None:
    said = toy.run(
        "import afd_compat.source as s\ns.find_spec = lambda name: None\n"
        "import afd_compat.install as afd, toy_patches as t\ndone = afd.install([t.plain])\n"
        "try: afd.require()\nexcept RuntimeError as error: print(error)\nelse: raise AssertionError"
    )
    assert "no vLLM is installed" in said


def test_require_before_install_says_so(toy: Toy) -> None:
    said = toy.run("import afd_compat.install as afd\ntry: afd.require()\nexcept RuntimeError as e: print(e)")
    assert "not installed in this process" in said
