"""Parts of models of which attention keeps more than its own: who holds what, and that nothing else is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.forward_context import set_forward_context
from vllm.model_executor.model_loader import get_model

from afd_connectors.step import Step
from afd_models.exchange import Exchange
from afd_models.keep import Keep
from afd_models.shares import AllRows
from afd_models.stages import Replay, Stage, find_stages
from afd_models.wrappers import Part, selected

FAMILIES = ("deepseek-v2", "deepseek-v3", "qwen3-moe")
LAYERS = 4
GATE = Keep(gate=True)
pytestmark = pytest.mark.usefixtures("distributed")


@dataclass(frozen=True, slots=True)
class Built:
    """A model with the config that it was built with and, for a part, its stages."""

    model: nn.Module
    config: VllmConfig
    stages: tuple[Stage, ...] = ()

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        return dict(self.model.named_parameters())


def build(folder: Path, part: Part | None, dtype: str = "bfloat16") -> Built:
    """The whole model without a part."""
    args = EngineArgs(model=str(folder), enforce_eager=True, max_model_len=256, dtype=dtype)
    config = args.create_engine_config()
    with set_current_vllm_config(config):
        if part is None:
            return Built(get_model(vllm_config=config), config)
        with selected(config.model_config, part) as spec:
            model = get_model(vllm_config=config)
    return Built(model, config, find_stages(spec, model))


class Straight:
    """An attention port whose FFN role computes in the same call."""

    def __init__(self, ffn: Built, keep: Keep) -> None:
        self._ffn, self._replay = ffn, Replay(ffn.model, ffn.stages, keep)
        self._out = torch.empty(0)
        self.logits: list[torch.Tensor | None] = []

    def begin(self, _step: Step) -> None:
        self.logits.clear()

    def send(
        self, _step: Step, layer: int, hidden: torch.Tensor, router: torch.Tensor | None = None, *, stage: int = 0
    ) -> None:
        self.logits.append(router)
        with set_forward_context(None, self._ffn.config, num_tokens=hidden.shape[0]):
            self._out = self._replay(layer, hidden.clone(), None if router is None else router.clone())

    def recv(self, _step: Step, _layer: int, out: torch.Tensor, *, stage: int = 0) -> None:
        out.copy_(self._out)


@dataclass(frozen=True, slots=True)
class Family:
    """A family's whole model, and both parts of it for one value of `Keep`."""

    name: str
    keep: Keep
    whole: Built
    attention: Built
    ffn: Built
    port: Straight


@pytest.fixture(scope="module", params=FAMILIES)
def whole(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> tuple[str, Path, Built]:
    folder = checkpoint(request.param)
    return request.param, folder, build(folder, None)


@pytest.fixture(scope="module", params=[GATE], ids=["gate"])
def family(request: pytest.FixtureRequest, whole: tuple[str, Path, Built]) -> Family:
    (name, folder, native), keep = whole, request.param
    exchange = Exchange()
    attention, ffn = build(folder, Part("attention", exchange, keep)), build(folder, Part("ffn", keep=keep))
    port = Straight(ffn, keep)
    exchange.connect(port, ffn.stages[0].layer, AllRows())  # type: ignore[arg-type]  # it only stands in for one
    return Family(name, keep, native, attention, ffn, port)


def owners(family: Family, part: str) -> set[str]:
    """Which roles hold parameters whose names have ``part`` in them."""
    parts = {"attention": family.attention, "ffn": family.ffn}
    return {role for role, built in parts.items() if any(part in name for name in built.parameters)}


def test_parts_hold_the_whole_model_with_its_values(family: Family) -> None:
    whole = family.whole.parameters
    assert set(family.attention.parameters) | set(family.ffn.parameters) == set(whole)
    for built in (family.attention, family.ffn):
        assert all(torch.equal(value, whole[name]) for name, value in built.parameters.items())


def test_what_attention_keeps_is_not_held_by_the_ffn_role(family: Family) -> None:
    assert owners(family, ".mlp.gate.weight") == ({"attention"} if family.keep.gate else {"attention", "ffn"})
    assert owners(family, ".experts.") == {"ffn"}
    # The choice of experts uses it, wherever the logits come from; a native block builds it with its gate.
    bias = {"attention", "ffn"} if family.name == "deepseek-v3" else set()
    assert owners(family, "e_score_correction_bias") == bias


@pytest.mark.parametrize("rows", [1, 7])
def test_each_block_computes_bit_for_bit_what_the_whole_models_computes(family: Family, rows: int) -> None:
    for layer in range(LAYERS):
        torch.manual_seed(rows * 31 + layer)
        hidden = torch.randn(rows, family.whole.config.model_config.get_hidden_size(), dtype=torch.bfloat16)
        block = f"model.layers.{layer}.mlp"
        with torch.inference_mode():
            with set_forward_context(None, family.whole.config, num_tokens=rows):
                expected = family.whole.model.get_submodule(block)(hidden.clone())
            with set_forward_context(None, family.attention.config, num_tokens=rows):
                family.port.logits.clear()
                found = family.attention.model.get_submodule(block)(hidden.clone())
        assert torch.equal(found, expected), layer
        gated = family.keep.gate and layer > 0
        assert [logits is not None for logits in family.port.logits] == [gated]
