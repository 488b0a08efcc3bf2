"""Importing a package loads neither vllm nor torch: what needs them is reached by string or in functions."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "packages"
PACKAGES = ("afd_compat", "afd_connectors", "afd_models", "afd_workers", "afd_npu")

# Reached only by string (a registry, vLLM's worker_cls) or inside functions; everything else is light.
HEAVY = (
    "afd_connectors.testing*",
    "afd_connectors.transports.*_*",
    "afd_connectors.transports.enqueued.ffn",
    "afd_connectors.transports.enqueued.routers",
    "afd_connectors.transports.paired.attention",
    "afd_connectors.transports.paired.b*",
    "afd_connectors.transports.paired.ffn",
    "afd_connectors.transports.paired.guests",
    "afd_connectors.transports.paired.lines",
    "afd_connectors.transports.paired.pe*",
    "afd_connectors.transports.paired.watch",
    "afd_models.balanced",
    "afd_models.cut",
    "afd_models.exchange",
    "afd_models.kept",
    "afd_models.needed",
    "afd_models.postconditions",
    "afd_models.prove",
    "afd_models.stages",
    "afd_models.standins",
    "afd_models.wrappers",
    "afd_workers.cpu",
    "afd_workers.cuda",
    "afd_workers.cuda_*",
    "afd_workers.dbo",
    "afd_workers.dbo_attention",
    "afd_workers.dbo_ffn",
    "afd_workers.dbo_timing",
    "afd_workers.team",
    "afd_workers.team_watch",
)

PROBE = """
import importlib, json, sys
loaded = {}
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
    for heavy in {"vllm", "torch"} & sys.modules.keys():
        loaded.setdefault(heavy, name)
print(json.dumps(loaded))
"""


def source(package: str) -> Path:
    return SOURCES / package.replace("_", "-") / "src"


def modules(package: str) -> dict[str, Path]:
    """Every module of a package by its dotted name, the package itself first."""
    found = {}
    for path in sorted((source(package) / package).rglob("*.py")):
        parts = path.relative_to(source(package)).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def is_heavy(module: str) -> bool:
    return any(fnmatch(module, pattern) for pattern in HEAVY)


@pytest.mark.timeout(90)
@pytest.mark.parametrize("package", PACKAGES)
def test_light_modules_load_neither_vllm_nor_torch(package: str) -> None:
    light = [name for name in modules(package) if not is_heavy(name) and not name.endswith("__main__")]
    assert light[0] == package
    ran = subprocess.run([sys.executable, "-c", PROBE, json.dumps(light)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {}, "the value is the module whose import loaded the key"


def test_every_heavy_pattern_names_a_module() -> None:
    every = [name for package in PACKAGES for name in modules(package)]
    assert [pattern for pattern in HEAVY if not any(fnmatch(name, pattern) for name in every)] == []


def imported(path: Path) -> set[str]:
    """Top-level names of everything that a file imports anywhere, also inside functions and TYPE_CHECKING."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize(("name", "path"), modules("afd_connectors").items())
def test_connectors_never_import_vllm(name: str, path: Path) -> None:
    assert "vllm" not in imported(path)
    assert 'import_module("vllm' not in path.read_text().replace("'", '"')
