"""A declaration that does not say what it must is refused when it is written, not when it is installed."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from afd_compat import config, install, policy, registry, report
from afd_compat.declaration import Patch, patch, seam
from afd_compat.install import refuse_duplicates
from afd_compat.patches import config_validation
from afd_compat.source import Tree
from afd_npu import patches as npu

ROOT = Path(__file__).resolve().parents[3]
PIN = "sig:0123456789abcdef"
GOOD: dict[str, object] = {
    "target": "a.b:C.f", "vllm": ">=0.30,<0.34", "how": "wrap", "processes": ("api",), "effect": "e",
    "until": "u",
    "active": lambda: True, "pin": PIN,
}  # fmt: skip


def declare(**changes: object) -> Patch:
    """A good declaration with changes."""
    arguments = {**GOOD, **changes}
    return patch(arguments.pop("target"), **arguments)(lambda native: native)  # type: ignore[arg-type]


def test_a_declaration_is_a_value() -> None:
    assert declare(active=None, when="scoped").condition == "inside its scope"
    assert declare().module == "a.b"
    assert declare().qualname == "C.f"
    assert declare(pin={"0.30": PIN, "0.31": PIN.replace("0", "1")}).pin("0.31.2.dev1") == PIN.replace("0", "1")
    assert declare(pin={"0.30": PIN}).pin("0.31") == ""
    assert declare().pin("7.8") == PIN


@pytest.mark.parametrize(
    "changes",
    [
        {"target": "a.b.C"}, {"target": "a b:c"}, {"target": ":f"}, {"vllm": ">=0.30"}, {"vllm": ""},
        {"pin": ""},
        {"pin": "sig:12"}, {"pin": "sha:0123456789abcdef"}, {"pin": {"0.30": "x"}}, {"active": None},
        {"how": "add"}, {"how": "add", "active": None}, {"how": "add", "pin": ""},
    ],
)  # fmt: skip
def test_bad_declarations(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*; [^\n]*\.$"):
        declare(**changes)


def test_a_seam_names_what_vllm_offers() -> None:
    entry = seam("a:f", vllm="<1", native="worker_cls", processes=("engine",), effect="e")
    assert (entry.how, entry.seam, entry.function) == ("seam", "worker_cls", None)
    with pytest.raises(ValueError, match="name vLLM's seam"):
        seam("a:f", vllm="<1", native="", processes=(), effect="e")


ROWS = {
    "vllm.engine.arg_utils:EngineArgs.create_engine_config": "wrap",
    "vllm.v1.engine.core:EngineCore.__init__": "seam",
    "vllm.v1.engine.core:EngineCore._initialize_kv_caches": "seam",
    "vllm.v1.engine.core:EngineCore.shutdown": "seam",
    "vllm.v1.engine.core:EngineCoreProc.run_busy_loop": "seam",
    "vllm.v1.engine.core:DPEngineCoreProc.run_busy_loop": "seam",
    "vllm.v1.engine.core:EngineCoreProc.run_engine_core": "wrap",
    "vllm.v1.engine.utils:launch_core_engines": "wrap",
    "vllm.v1.engine.core_client:DPAsyncMPClient.add_request_async": "wrap",
    "vllm.forward_context:set_forward_context": "wrap",
}


def test_what_is_declared() -> None:
    found = {entry.target: entry.how for entry in registry.declared()}
    assert found.items() >= ROWS.items()
    refuse_duplicates(registry.declared())
    assert registry.declared() == registry.declared()


@pytest.mark.parametrize("entry", registry.declared(), ids=lambda entry: entry.target)
def test_every_row_says_what_it_must(entry: Patch) -> None:
    assert entry.effect.endswith(".")
    assert entry.processes
    assert bool(entry.function) == bool(entry.pins or entry.how == "add") == (entry.how not in ("seam", "planned"))
    assert bool(entry.until) == (entry.how != "seam")
    if entry.how == "planned":
        return
    if entry.target.startswith("vllm."):
        assert all(entry.covers(version) for version in ("0.30.0", "0.31.0", "0.32.0", "0.33.0", "0.33.1.dev4+gabc"))
    assert not entry.covers("0.29.1")
    assert not entry.covers("0.34.0")
    if entry.pins:
        assert all(entry.pin(f"0.{minor}.0") for minor in (30, 31, 32, 33))
    if any(pin.startswith("body:") for _, pin in entry.pins):
        assert dict(entry.pins).keys() == {"0.30", "0.31", "0.32", "0.33"}, "each version's text was looked at"


def test_what_the_ascend_package_plans_is_declared_and_never_installed() -> None:
    metadata = tomllib.loads((ROOT / "packages" / "afd-npu" / "pyproject.toml").read_text())
    assert metadata["project"]["entry-points"][registry.GROUP] == {"npu": "afd_npu.patches"}
    rows = [value for value in vars(npu).values() if isinstance(value, Patch)]
    assert [row.module.rpartition(".")[2] for row in rows] == [
        "ascend_config", "platform", "mla_v1", "ubatch_utils"
    ]  # fmt: skip
    assert {row.how for row in rows} == {"planned"}
    done = install.Installation(tuple(rows))
    assert {done.state(row) for row in rows} == {"not there yet"}
    assert done.problems() == []
    assert {row.state for row in report.against(rows, Tree())} == {"not there yet"}
    refuse_duplicates([*rows, declare(target=rows[-1].target)])


ASKED = [entry.active for entry in registry.declared() if entry.active and entry.when == "import"]


@pytest.mark.parametrize("active", ASKED, ids=repr)
@pytest.mark.parametrize("value", [None, object(), {}, {"other": {}}, "text", 3])
def test_asking_whether_a_row_is_active_never_fails_without_afd(active: Callable[..., bool], value: object) -> None:
    odd = SimpleNamespace(additional_config=value)
    for args, kwargs in (((), {}), ((value,), {}), ((odd,), {}), ((value, odd), {}), ((), {"vllm_config": odd})):
        assert active(*args, **kwargs) is False


def test_the_tables_hold_every_declaration() -> None:
    entries = registry.declared()
    rows = report.rows(entries)
    table = report.markdown(rows).splitlines()
    assert len(table) == 2 + len(entries)
    assert {line.count(" | ") for line in table} == {len(report.HEADINGS) - 1}
    assert all(entry.target in report.text(rows) and entry.effect in report.text(rows) for entry in entries)
    assert config_validation.choose_role.condition == '`additional_config` has "afd"'
    nothing = report.against(entries, Tree())
    assert len(nothing) == len(entries)


class _Policy:
    """Records what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, object, object]] = []

    def prepare(self, engine_args: object, config: object) -> object:
        self.asked.append(("prepare", engine_args, config))
        return "prepared"

    def finish(self, vllm_config: object, config: object) -> None:
        self.asked.append(("finish", vllm_config, config))


class _EngineArgs:
    additional_config: object = {"afd": {"role": "ffn"}}


def test_the_policy_is_asked_around_the_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_policy", None)
    monkeypatch.setattr(config_validation, "require", lambda: None)
    function = config_validation.choose_role.function
    assert function is not None

    def native(engine_args: object, usage: object, *, headless: bool) -> object:
        return (engine_args, usage, headless)

    with pytest.raises(RuntimeError, match=r"^AFD is configured but [^\n]*; [^\n]*\.$"):
        function(native, _EngineArgs(), "usage", headless=True)
    chosen, engine_args = _Policy(), _EngineArgs()
    policy.use(chosen)  # type: ignore[arg-type]
    assert function(native, engine_args, "usage", headless=True) == ("prepared", "usage", True)
    parsed = config.Config(role="ffn")
    assert chosen.asked == [("prepare", engine_args, parsed), ("finish", ("prepared", "usage", True), parsed)]


def test_a_policy_can_be_named_and_is_made_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_policy", None)
    policy.use("types:SimpleNamespace")
    made = policy.current()
    assert isinstance(made, SimpleNamespace)
    assert policy.current() is made


@pytest.mark.parametrize("additional", [None, {}, {"other": 1}, object()])
def test_active_only_where_afd_is_configured(additional: object) -> None:
    active = config_validation.choose_role.active
    assert active is not None
    engine_args = _EngineArgs()
    assert active(engine_args, 1, headless=True)
    engine_args.additional_config = additional
    assert not active(engine_args)
    assert not active(object())
