"""Models that the cut does not carry end where vLLM builds its configuration, on both roles, before any loading."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from vllm.engine.arg_utils import EngineArgs

from afd_compat import install, policy, registry
from afd_models.families import refused
from afd_workers.policy import Roles


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
@pytest.mark.parametrize("arch", sorted(refused()))
def test_the_start_ends_in_one_sentence_and_within_a_second(arch: str, role: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [arch], "model_type": "llama"}))
    options = EngineArgs(model=str(tmp_path), additional_config={"afd": {"role": role}})
    began = time.monotonic()
    with pytest.raises(ValueError, match=rf"^AFD does not carry {arch} \([^;\n]+; serve [^;\n]+\.$"):
        options.create_engine_config()
    assert time.monotonic() - began < 1.0
