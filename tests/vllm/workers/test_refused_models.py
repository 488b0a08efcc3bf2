"""Models that the cut does not carry end where vLLM builds its configuration, on both roles, before they are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models import ModelRegistry

from afd_compat import install, policy, registry
from afd_models.families import refused
from afd_workers import routing
from afd_workers.policy import Roles
from tools import toy_checkpoint


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The patches in place, with what the plugin decides."""
    monkeypatch.setattr(policy, "_policy", Roles())
    install.uninstall()
    install.install(registry.declared())
    yield
    install.uninstall()


@pytest.mark.usefixtures("plugged")
@pytest.mark.parametrize("role", ["attention", "ffn"])
@pytest.mark.parametrize("arch", ["DeepseekV32ForCausalLM", "Qwen3VLMoeForConditionalGeneration"])
def test_the_start_ends_in_one_sentence(arch: str, role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(EngineArgs, "create_model_config")  # which reads a model's files first
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [arch]}))
    options = EngineArgs(model=str(tmp_path), additional_config={"afd": {"role": role}})
    with pytest.raises(ValueError, match=rf"^AFD does not carry {arch} \([^;\n]+; serve [^;\n]+\.$"):
        options.create_engine_config()


@pytest.mark.usefixtures("plugged")
@pytest.mark.parametrize("role", ["attention", "ffn"])
def test_a_routing_that_nobody_knows_ends_the_start(role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(routing.VARIABLE, "unifrom")
    (tmp_path / "config.json").write_text("{}")
    options = EngineArgs(model=str(tmp_path), additional_config={"afd": {"role": role}})
    monkeypatch.delattr(EngineArgs, "create_model_config")
    names = set(routing.registered())
    assert set(routing.written()) == names - {routing.BALANCED}
    with pytest.raises(ValueError, match=r"STRATEGY to name one of .*uniform_random, found 'unifrom': choose"):
        options.create_engine_config()


@pytest.mark.usefixtures("plugged")
def test_gpt_oss_as_published_is_told_that_processors_miss_its_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: False)
    folder = toy_checkpoint.make("gpt-oss", tmp_path, changes={"quantization_config": {"quant_method": "mxfp4"}})
    for role in ("attention", "ffn"):
        options = EngineArgs(model=str(folder), additional_config={"afd": {"role": role}})
        with pytest.raises(ValueError, match=r"^vLLM has no kernel for \w*mxfp4 experts [^.\n]+\.$"):
            options.create_engine_config()


@pytest.mark.parametrize("arch", sorted(refused()))
def test_each_is_a_model_of_the_module_that_is_named(arch: str) -> None:
    assert ModelRegistry.models[arch].module_name == refused()[arch].module
