"""What both roles tell each other of the model is what they were given, not what vLLM's models make of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from afd_models import stages, wrappers
from afd_workers import links
from afd_workers.attention import AttentionRole
from afd_workers.ffn import FFNRole


class HFConfig:
    """As transformers has it: attributes that anybody may write."""

    def __init__(self) -> None:
        self.hidden_size = 8

    def to_dict(self) -> dict[str, object]:
        return dict(vars(self))


class Loader:
    """A native worker whose model writes into its config while it is built, as MiniMax-M2's attention does."""

    def __init__(self) -> None:
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(hf_config=HFConfig()), lora_config=None, parallel_config=None
        )
        self.device = SimpleNamespace(type="cpu")

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        self.vllm_config.model_config.hf_config.written = True

    def get_model(self) -> object:
        return self


class Attention(AttentionRole, Loader):
    """The attention role over it."""


class FFN(FFNRole, Loader):
    """The FFN role over it."""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, object]]:
    """What connectors were made with."""
    found: list[Mapping[str, object]] = []

    @contextmanager
    def selected(*_args: object) -> Iterator[object]:
        yield SimpleNamespace(inner="experts")

    def make_connector(*args: object) -> object:
        found.append(args[-1])  # type: ignore[arg-type]
        raise InterruptedError

    monkeypatch.setattr(wrappers, "selected", selected)
    monkeypatch.setattr(stages, "find_stages", lambda *_args: ())
    monkeypatch.setattr(stages, "Replay", lambda *_args: None)
    monkeypatch.setattr(links, "section", lambda _config: SimpleNamespace(
        compute_gate_on_attention=False, shared_experts_on_attention=False, dense_layers_on_attention=False
    ))  # fmt: skip
    monkeypatch.setattr(links, "placement", lambda _config: None)
    monkeypatch.setattr(links, "make_connector", make_connector)
    return found


def test_both_roles_describe_the_model_as_it_was_given(seen: list[Mapping[str, object]]) -> None:
    attention, ffn = Attention(), FFN()
    with pytest.raises(InterruptedError):
        attention.load_model()
    ffn.load_model()
    with pytest.raises(InterruptedError):
        ffn._connector(links.section(ffn.vllm_config))
    assert seen == [{"hidden_size": 8}, {"hidden_size": 8}]
    assert ffn.vllm_config.model_config.hf_config.written
