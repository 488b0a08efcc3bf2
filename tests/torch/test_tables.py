"""The generated tables are those of the code."""

from __future__ import annotations

import pytest

from tools import tables


@pytest.mark.parametrize(("file", "text"), tables.current(), ids=lambda value: getattr(value, "name", ""))
def test_generated_tables_are_current(file, text) -> None:
    assert file.read_text() == text, f"{file.name} is not current: run python tools/tables.py"
