"""The transport that docs/contract.md shows keeps the contract when it is installed as another package's."""

from __future__ import annotations

import sys
import tempfile
import tomllib
from pathlib import Path

from afd_connectors import names, resolve
from afd_connectors.testing import ConnectorSuite

EXAMPLE = Path(__file__).parents[3] / "examples" / "third_party_transport"


def install(site: Path) -> None:
    """What pip leaves of the example in an environment: its module and its metadata on the path."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    sys.path[:0] = [str(site), str(EXAMPLE)]


SITE = tempfile.TemporaryDirectory()
install(Path(SITE.name))  # before the suite, which asks the transport what it can do


class TestStaged(ConnectorSuite):
    """As the document shows it."""

    name = "staged"


def test_found_by_its_entry_point() -> None:
    assert "staged" in names()
    assert resolve("staged", "cuda").__module__ == "afd_staged"
