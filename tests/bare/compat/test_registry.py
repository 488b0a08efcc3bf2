"""Packages of others add rows through the entry point group `afd.patches`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from afd_compat import registry

MODULE = """
from afd_compat.declaration import planned

row = planned("other.module:f", processes=("worker",), effect="e.", until="u")
not_a_row = 3
"""


def distribution(folder: Path, name: str, points: str) -> None:
    """An installed distribution with entry points."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_module_named_by_an_entry_point_is_read(folder: Path) -> None:
    before = registry.declared()
    (folder / "rows_of_others.py").write_text(MODULE)
    distribution(folder, "others", "[afd.patches]\nmine = rows_of_others\n\n[console_scripts]\nx = y:z\n")
    added = set(registry.declared()) - set(before)
    assert [row.target for row in added] == ["other.module:f"]
    assert set(before) < set(registry.declared())


def test_the_first_of_one_name_on_the_path_counts(folder: Path) -> None:
    (folder / "first_rows.py").write_text(MODULE)
    distribution(folder / "b", "second", "[afd.patches]\nmine = rows_that_do_not_exist\n")
    distribution(folder, "first", "[afd.patches]\nmine = first_rows\n")
    sys.path.append(str(folder / "b"))
    try:
        assert "other.module:f" in [row.target for row in registry.declared()]
    finally:
        sys.path.remove(str(folder / "b"))


def test_an_entry_point_that_names_no_module_is_refused(folder: Path) -> None:
    distribution(folder, "wrong", "[afd.patches]\nwrong = os.path:join\n")
    with pytest.raises(TypeError, match=r"Entry point 'wrong' of afd\.patches must name a module"):
        registry.declared()
