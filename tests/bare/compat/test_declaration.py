"""A declaration that does not say what it must is refused when it is written, not when it is installed."""

from __future__ import annotations

import pytest

from afd_compat import config, policy, registry, report
from afd_compat.declaration import Patch, patch, seam
from afd_compat.install import refuse_duplicates
from afd_compat.patches import config_validation
from afd_compat.source import Tree

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


def test_what_is_declared() -> None:
    found = {entry.target.partition(":")[2]: entry.how for entry in registry.declared()}
    assert found["EngineArgs.create_engine_config"] == "wrap"
    assert [name for name, how in found.items() if how == "seam"] == [
        "EngineCore.__init__", "EngineCore._initialize_kv_caches", "EngineCore.shutdown",
        "EngineCoreProc.run_busy_loop", "DPEngineCoreProc.run_busy_loop",
    ]  # fmt: skip
    refuse_duplicates(registry.declared())
    assert registry.declared() == registry.declared()


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


@pytest.mark.parametrize("additional", [None, {}, {"other": 1}, object()])
def test_active_only_where_afd_is_configured(additional: object) -> None:
    active = config_validation.choose_role.active
    assert active is not None
    engine_args = _EngineArgs()
    assert active(engine_args, 1, headless=True)
    engine_args.additional_config = additional
    assert not active(engine_args)
    assert not active(object())
