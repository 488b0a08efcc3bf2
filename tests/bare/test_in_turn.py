"""Parts of a benchmark: each runs whatever became of the one before, and any that was wrong is remembered."""

from __future__ import annotations

import pytest

from tools.gpu.children import Failed
from tools.gpu.in_turn import in_turn


@pytest.mark.parametrize(
    ("names", "right"),
    [
        (["quiet", "right"], True),
        (["right", "wrong", "right"], False),
        (["gone", "right"], False),
        (["broken", "right"], False),
        ([], True),
    ],
)
def test_every_part_runs_and_none_hides_another(
    names: list[str], right: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = []

    def part(name: str) -> bool | None:
        ran.append(name)
        if name == "gone":
            raise Failed("it is gone")
        if name == "broken":
            raise ZeroDivisionError
        return {"right": True, "wrong": False}.get(name)

    parts = {name: lambda name=name: part(name) for name in ("quiet", "right", "wrong", "gone", "broken", "not asked")}
    assert in_turn(parts, names) is right
    assert ran == names
    said = capsys.readouterr()
    assert [line for line in said.out.splitlines() if line.startswith("---")] == [f"--- {name}" for name in names]
    assert ("FAILED: it is gone" in said.out) == ("gone" in names)
    assert ("ZeroDivisionError" in said.err) == ("broken" in names)
