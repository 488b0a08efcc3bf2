"""Connectors are found by name, and every miss is one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from afd_connectors import names, nvml, registry, resolve
from afd_connectors.facts import Facts
from afd_connectors.layout import Layout
from afd_connectors.ports import FEATURES
from afd_connectors.settings import Settings
from afd_connectors.shape import Shape


def test_names() -> None:
    assert {"loopback", "nccl-p2p", "nvlink", "shm", "tcp"} <= set(names())
    assert list(names()) == sorted(names())


def test_auto_picks_by_device() -> None:
    assert resolve("auto", "cpu") is resolve("tcp", "cpu")
    assert resolve("auto", "cuda") is resolve("nccl-p2p", "cuda")
    with pytest.raises(ValueError, match=r"'camp2p', which is not there yet; known connectors are .*tcp"):
        resolve("auto", "npu")
    with pytest.raises(ValueError, match="no transport for device 'tpu'"):
        resolve("auto", "tpu")


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (Settings(), "shm"),
        (Settings(host="127.0.0.9"), "shm"),
        (Settings(host="localhost"), "shm"),
        (Settings(host="::1"), "shm"),
        (Settings(host="0.0.0.0"), "tcp"),
        (Settings(host="10.1.2.3"), "tcp"),
        (Settings(host="ffn.example"), "tcp"),
        (Settings(extra={"ffn_addresses": ["127.0.0.1:1", "10.1.2.3:1"]}), "tcp"),
        (Settings(extra={"ffn_addresses": ["127.0.0.1:1", "[::1]:1"]}), "shm"),
        (Settings(extra={"standby_addresses": ["10.1.2.3:1"]}), "tcp"),
    ],
)
def test_auto_picks_by_host(settings: Settings, name: str) -> None:
    """Only where every address is this host's own loopback is it sure that both roles are here."""
    assert resolve("auto", "cpu", settings) is resolve(name, "cpu")


@pytest.mark.parametrize(
    ("host", "obstacle", "installed", "name", "told"),
    [
        ("127.0.0.1", None, ("cuda", "cuda.bindings"), "nvlink", ""),
        (
            "127.0.0.1",
            "device 0 cannot reach over NVLink device 1",
            (),
            "nccl-p2p",
            "device 0 cannot reach over NVLink",
        ),
        ("127.0.0.1", None, ("cuda",), "nccl-p2p", "cuda.bindings is not installed"),
        ("10.1.2.3", None, (), "nccl-p2p", "its addresses are not all this host's own loopback"),
    ],
)
def test_auto_picks_by_what_devices_reach_and_says_why_not(
    host: str, obstacle: str | None, installed: tuple[str, ...], name: str, told: str,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(nvml, "obstacle", lambda: obstacle)
    monkeypatch.setattr(registry, "find_spec", lambda module: module in installed or None)
    with caplog.at_level("INFO", "afd.connectors"):
        assert resolve("auto", "cuda", Settings(host=host)) is resolve(name, "cuda")
    assert (f"connector 'auto' chooses 'nccl-p2p' and not 'nvlink': {told}" in caplog.text) == (name == "nccl-p2p")


def test_auto_takes_another_module_of_that_name_for_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a file cuda.py beside a script is."""
    (tmp_path / "cuda.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setattr(nvml, "obstacle", lambda: None)
    assert resolve("auto", "cuda", Settings()) is resolve("nccl-p2p", "cuda")
    monkeypatch.delitem(sys.modules, "cuda")
    assert resolve("auto", "cuda", Settings()) is resolve("nccl-p2p", "cuda")


@pytest.mark.parametrize(
    ("name", "device", "sentence"),
    [
        ("pigeon", "cpu", "connector 'pigeon' is not known; known connectors are .*loopback"),
        ("camp2p", "npu", "connector 'camp2p' is not there yet"),
        ("nccl-p2p", "cpu", "connector 'nccl-p2p' carries tensors on cuda, found device 'cpu'"),
        ("tcp", "cuda", "connector 'tcp' carries tensors on cpu, found device 'cuda'"),
    ],
)
def test_misses(name: str, device: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        resolve(name, device)


@pytest.mark.parametrize("name", registry.BUILTIN)
def test_declarations(name: str) -> None:
    connector = resolve(name, "cuda" if name in ("nccl-p2p", "nvlink") else "cpu")
    assert connector.name == name
    assert connector.features <= FEATURES
    connector.check_options({})
    with pytest.raises(ValueError, match="found option 'x'"):
        connector.check_options({"x": 1})


def test_entry_point_must_name_a_connector(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    entry = EntryPoint("odd", "json:dumps", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda **_: [entry])
    assert "odd" in names()
    with pytest.raises(ValueError, match=r"'odd' of group afd\.connectors must name a Connector class"):
        resolve("odd", "cpu")


def test_bytes_needed() -> None:
    shape = Shape(10, 128, "bfloat16", 4, stages=2)
    facts = Facts("", "", "", "bfloat16", 128, 4, 0, "ffn", 2, (), 2, 1)
    tcp = resolve("tcp", "cpu")
    assert tcp(Layout("attention", 0, 2, 1), shape, facts, Settings()).bytes_needed() == 2 * 2 * 2560
    assert tcp(Layout("ffn", 0, 2, 1), shape, facts, Settings()).bytes_needed() == 2 * 4 * 2560
    shm = resolve("shm", "cpu")
    segment = 4096 + 3 * 4096  # marks and heads, then two stages of request and reply, in whole pages
    assert shm(Layout("attention", 0, 2, 1), shape, facts, Settings()).bytes_needed() == segment + 2 * 2 * 2560


def test_choosing_loads_no_torch() -> None:
    """Tables and configuration checks must not cost an import of torch."""
    code = (
        "import sys, afd_connectors as a\n"
        "from afd_connectors.transports.paired import head as frame\n"
        "[a.resolve(n, 'cpu').check_options({}) for n in ('loopback', 'shm', 'tcp')]\n"
        "[a.resolve(n, 'cuda').check_options({}) for n in ('nccl-p2p', 'nvlink')]\n"
        "assert not {'torch', 'vllm', 'numpy'} & set(sys.modules), sys.modules.keys()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
