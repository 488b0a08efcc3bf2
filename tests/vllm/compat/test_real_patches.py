"""The declarations fit the vLLM that is installed, and change nothing in it unless AFD is configured."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING

import pytest
from vllm.engine import arg_utils

from afd_compat import install, policy, registry
from afd_compat.drift import inspect_patch
from afd_compat.patches.config_validation import choose_role
from afd_compat.slot import MISSING, find_slot
from afd_compat.source import Tree
from afd_compat.version import installed_version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afd_compat.config import Config
    from afd_compat.declaration import Patch


HERE = [entry for entry in registry.declared() if entry.how != "planned"]  # what is planned is for other vLLMs too


class Recorder:
    """Stands for `create_engine_config`: keeps what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def native(self, engine_args: object, usage_context: object = None, headless: bool = False) -> object:
        self.calls.append((engine_args, usage_context, headless))
        return "native result"


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """The patches in place around a native that only records."""
    recorder = Recorder()

    def create_engine_config(self: object, usage_context: object = None, headless: bool = False) -> object:
        return recorder.native(self, usage_context, headless)

    install.uninstall()
    with monkeypatch.context() as patching:
        patching.setattr(arg_utils.EngineArgs, "create_engine_config", create_engine_config)
        install.install(registry.declared())
        yield recorder
        install.uninstall()


def engine_args(additional_config: object) -> arg_utils.EngineArgs:
    """Engine arguments of the real class, without what its `__post_init__` would download or look up."""
    made = object.__new__(arg_utils.EngineArgs)
    made.additional_config = additional_config
    return made


@pytest.mark.parametrize("entry", HERE, ids=lambda entry: entry.target)
def test_every_entry_fits_the_installed_text(entry: Patch) -> None:
    assert inspect_patch(entry, Tree(), installed_version()).problem == ""


@pytest.mark.parametrize("entry", HERE, ids=lambda entry: entry.target)
def test_every_target_is_what_vllm_really_defines(entry: Patch) -> None:
    assert find_slot(importlib.import_module(entry.module), entry.qualname).get() is not MISSING


def test_the_version_is_vllms_own() -> None:
    import vllm

    assert installed_version() == vllm.__version__


def test_the_wrapper_is_in_place_and_undone() -> None:
    install.uninstall()
    native = vars(arg_utils.EngineArgs)["create_engine_config"]
    done = install.install(registry.declared())
    assert done.state(choose_role) == "in place"
    assert done.problems() == []
    done.require()
    assert arg_utils.EngineArgs.create_engine_config is not native
    assert arg_utils.AsyncEngineArgs.create_engine_config is arg_utils.EngineArgs.create_engine_config
    assert inspect.signature(arg_utils.EngineArgs.create_engine_config) == inspect.signature(native)
    install.uninstall()
    assert vars(arg_utils.EngineArgs)["create_engine_config"] is native


@pytest.mark.parametrize("additional", [{}, {"other": 1}, None])
def test_without_afd_the_native_is_called_once_with_the_same_arguments(
    recorded: Recorder, additional: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "_policy", None)
    args = engine_args(additional)
    assert args.create_engine_config("usage", headless=True) == "native result"
    assert recorded.calls == [(args, "usage", True)]


def test_with_afd_the_policy_decides(recorded: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    args, prepared = engine_args({"afd": {"role": "ffn"}}), engine_args({"afd": {"role": "ffn"}})

    class Policy:
        finished: object = None

        def prepare(self, engine_args: object, config: Config) -> object:
            assert engine_args is args
            assert config.role == "ffn"
            return prepared

        def finish(self, vllm_config: object, config: Config) -> None:
            self.finished = (vllm_config, config.role)

    chosen = Policy()
    monkeypatch.setattr(policy, "_policy", chosen)
    assert args.create_engine_config(headless=True) == "native result"
    assert recorded.calls == [(prepared, None, True)]
    assert chosen.finished == ("native result", "ffn")


@pytest.mark.parametrize("section", [{}, {"role": "x"}, "text", {"role": "ffn", "port": 0}])
def test_a_bad_section_stops_before_the_native(recorded: Recorder, section: object) -> None:
    with pytest.raises(ValueError, match=r'^additional_config\["afd"\][^\n]*\.$'):
        engine_args({"afd": section}).create_engine_config()
    assert recorded.calls == []


@pytest.mark.parametrize("entry", [entry for entry in HERE if entry.pins], ids=lambda entry: entry.target)
def test_a_target_edited_by_hand_is_refused_with_both_hashes_only_with_afd(
    entry: Patch, recorded: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    install.uninstall()
    read, name = Tree.read, entry.qualname.rpartition(".")[2]

    def edited(tree: Tree, module: str) -> str | None:
        text = read(tree, module)
        return text.replace(f"def {name}(", f"def {name} (") if text and module == entry.module else text

    monkeypatch.setattr(Tree, "read", edited)
    install.install(registry.declared())
    assert engine_args({}).create_engine_config() == "native result"
    with pytest.raises(RuntimeError, match=r"^AFD is configured but [^\n]*--against WHEEL[^\n]*\.$") as caught:
        engine_args({"afd": {"role": "ffn"}}).create_engine_config()
    said, kind = str(caught.value), entry.pin(installed_version() or "").partition(":")[0]
    assert said.count(f"{kind}:") == 2
    assert entry.target in said
    assert entry.pin(installed_version() or "") in said


def test_an_untested_vllm_is_refused_only_with_afd(recorded: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    install.uninstall()
    monkeypatch.setattr(install, "installed_version", lambda: "0.99.0")
    install.install(registry.declared())
    assert engine_args({}).create_engine_config() == "native result"
    with pytest.raises(RuntimeError, match=r"^AFD is configured but [^\n]*0\.99\.0[^\n]*--against WHEEL[^\n]*\.$"):
        engine_args({"afd": {"role": "ffn"}}).create_engine_config()
    assert len(recorded.calls) == 1
    targets = [entry.target for entry in HERE if entry.function is not None]
    monkeypatch.setenv("AFD_ALLOW_DRIFT", ",".join(targets[1:]))
    install.uninstall()
    with pytest.raises(RuntimeError, match=targets[0].replace(".", r"\.")):
        install.install(registry.declared()).require()
    monkeypatch.setenv("AFD_ALLOW_DRIFT", ",".join(targets))
    install.uninstall()
    install.install(registry.declared()).require()
