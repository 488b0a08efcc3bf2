"""vLLM validates microbatching with AFD's roles, which load none of the all2all backends that it would ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from vllm.config import ModelConfig, ParallelConfig, VllmConfig

from afd_compat import install, registry
from afd_compat.patches.config_validation import accept_microbatches

AFD = {"afd": {"role": "attention"}}
GIVEN = "allgather_reducescatter"
Make = Callable[..., VllmConfig]


@pytest.fixture
def make(checkpoint: Callable[[str], Path]) -> Iterator[Make]:
    """Configurations with the patches in place. Two microbatches are asked for by size, as a CPU drops the switch."""
    model = ModelConfig(str(checkpoint("deepseek-v2")), skip_tokenizer_init=True)

    def config(section: dict[str, object], count: int = 2, backend: str = GIVEN) -> VllmConfig:
        parallel = ParallelConfig(ubatch_size=count, all2all_backend=backend)
        return VllmConfig(model_config=model, parallel_config=parallel, additional_config=section)

    install.uninstall()
    install.install(registry.declared())
    yield config
    install.uninstall()


def test_it_is_accepted_with_afd_and_again_with_the_backend_that_was_given(make: Make) -> None:
    config = make(AFD)
    assert config.parallel_config.use_ubatching
    assert config.parallel_config.all2all_backend == GIVEN
    config.__post_init__()
    assert config.parallel_config.all2all_backend == GIVEN
    assert config.model_config.disable_cascade_attn, "what vLLM sets for microbatches is still set"


def test_without_afd_vllm_refuses_as_it_does_by_itself(make: Make) -> None:
    with pytest.raises(ValueError, match="Microbatching currently only supports"):
        make({})


def test_an_error_of_vllm_leaves_the_backend_as_it_was(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    config, seen = make(AFD), []

    def broken(self: VllmConfig) -> None:
        seen.append(self.parallel_config.all2all_backend)
        raise RuntimeError("vLLM refuses")

    with pytest.raises(RuntimeError, match="vLLM refuses"):
        accept_microbatches.function(broken, config)
    assert seen == ["deepep_low_latency"]
    assert config.parallel_config.all2all_backend == GIVEN


@pytest.mark.parametrize(("section", "count"), [({}, 0), (AFD, 0), ({"other": 1}, 0)])
def test_elsewhere_the_native_is_called_once(
    make: Make, section: dict[str, object], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    install.uninstall()
    calls: list[VllmConfig] = []
    native = VllmConfig.__post_init__
    monkeypatch.setattr(VllmConfig, "__post_init__", lambda self: calls.append(self) or native(self))
    install.install(registry.declared())
    config = make(section, count)
    assert calls == [config]
    install.uninstall()
