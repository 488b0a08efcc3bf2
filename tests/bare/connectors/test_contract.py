"""docs/contract.md is in order, and shows the example that is tested."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
CONTRACT = (ROOT / "docs" / "contract.md").read_text()
EXAMPLE = ROOT / "examples" / "third_party_transport"


def test_clauses_are_numbered_in_order() -> None:
    groups = [int(number) for number in re.findall(r"^## (\d+) ", CONTRACT, re.MULTILINE)]
    assert groups == list(range(1, len(groups) + 1))
    clauses = [(int(group), int(one)) for group, one in re.findall(r"^- \*\*(\d+)\.(\d+)\*\* ", CONTRACT, re.MULTILINE)]
    expected = [(g, n) for g in groups for n in range(1, 1 + sum(group == g for group, _ in clauses))]
    assert clauses == expected
    assert {group for group, _ in clauses} == set(groups)


def test_clauses_stand_under_their_group() -> None:
    for section in re.split(r"^## ", CONTRACT, flags=re.MULTILINE):
        number = section.split(" ")[0]
        assert set(re.findall(r"^- \*\*(\d+)\.", section, re.MULTILINE)) <= {number}


def test_references_exist() -> None:
    defined = set(re.findall(r"^- \*\*(\d+\.\d+)\*\* ", CONTRACT, re.MULTILINE))
    table = [line for line in CONTRACT.splitlines() if line.startswith("|")]
    assert set(re.findall(r"\b\d+\.\d+\b", "\n".join(table))) <= defined
    for target in re.findall(r"\]\(\.\./([^)]+)\)", CONTRACT):
        assert (ROOT / target).exists(), target


def test_example_is_shown_as_it_is() -> None:
    source = (EXAMPLE / "afd_staged.py").read_text()
    assert len(source.splitlines()) <= 60
    assert f"```python\n{source}```" in CONTRACT


def test_example_is_registered_as_shown() -> None:
    (shown,) = re.findall(r"```toml\n(.*?)```", CONTRACT, re.DOTALL)
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    assert tomllib.loads(shown)["project"]["entry-points"] == project["entry-points"]
