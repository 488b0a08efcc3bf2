"""Parts of models of which attention keeps more than its own: who holds what, and that nothing else is computed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
import torch
from torch import nn
from vllm.forward_context import set_forward_context

from afd_connectors.layout import Role
from afd_connectors.step import Step
from afd_models.cut import cut
from afd_models.exchange import Exchange
from afd_models.families import find
from afd_models.keep import Keep
from afd_models.kept import without
from afd_models.shares import AllRows
from afd_models.stages import Replay
from afd_models.wrappers import Part
from tests.support.built import Built, build

LAYERS = 4
GATE, SHARED, DENSE = Keep(gate=True), Keep(shared=True), Keep(dense=True)
ALL = Keep(gate=True, shared=True, dense=True)
KEPT = {
    "deepseek-v2": (GATE, ALL),
    "deepseek-v3": (GATE, SHARED, DENSE, ALL),
    "qwen3-moe": (GATE, DENSE),
    "qwen3-next": (ALL,),
}
pytestmark = pytest.mark.usefixtures("distributed")


def words(keep: Keep) -> str:
    return "+".join(name for name, kept in asdict(keep).items() if kept)


class Straight:
    """An attention port whose FFN role computes in the same call."""

    def __init__(self, ffn: Built, keep: Keep) -> None:
        self._ffn, self._replay = ffn, Replay(ffn.model, ffn.stages, keep)
        self._out = torch.empty(0)
        self.logits: list[torch.Tensor | None] = []

    def begin(self, _step: Step) -> None:
        """Nothing to do."""

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


@pytest.fixture(scope="module")
def whole(checkpoint: Callable[[str], Path]) -> Callable[[str], Built]:
    """Each family's whole model, built once."""
    return functools.cache(lambda name: build(checkpoint(name), None))


@pytest.fixture(
    scope="module", params=[pytest.param((n, k), id=f"{n}-{words(k)}") for n, kept in KEPT.items() for k in kept]
)
def family(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path], whole: Callable[[str], Built]) -> Family:
    name, keep = request.param
    folder, exchange = checkpoint(name), Exchange()
    attention, ffn = build(folder, Part("attention", exchange, keep)), build(folder, Part("ffn", keep=keep))
    port = Straight(ffn, keep)
    exchange.connect(port, ffn.stages[0].layer, AllRows())  # type: ignore[arg-type]  # it only stands in for one
    return Family(name, keep, whole(name), attention, ffn, port)


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
    keep = family.keep
    assert owners(family, ".mlp.gate.weight") == ({"attention"} if keep.gate else {"attention", "ffn"})
    assert owners(family, ".experts.") == {"ffn"}
    assert owners(family, "layers.0.mlp.") == ({"attention"} if keep.dense else {"ffn"})
    if family.name != "qwen3-moe":
        shared = ".shared_expert." if family.name == "qwen3-next" else ".shared_experts."
        assert owners(family, shared) == ({"attention"} if keep.shared else {"ffn"})
    # The choice of experts uses it, wherever the logits come from; a native block builds it with its gate.
    bias = {"attention", "ffn"} if family.name == "deepseek-v3" else set()
    assert owners(family, "e_score_correction_bias") == bias


def test_both_roles_mean_the_same_stages(family: Family) -> None:
    assert family.attention.stages == family.ffn.stages
    assert [stage.layer for stage in family.ffn.stages] == list(range(1 if family.keep.dense else 0, LAYERS))


def blocks(family: Family, rows: int) -> Iterator[tuple[int, torch.Tensor, torch.Tensor, list[torch.Tensor | None]]]:
    """(layer, what the whole model computes, what both parts compute, the logits of each exchange)."""
    for layer in range(LAYERS):
        torch.manual_seed(rows * 31 + layer)
        hidden = torch.randn(rows, family.whole.config.model_config.get_hidden_size(), dtype=torch.bfloat16)
        block = f"model.layers.{layer}.mlp"
        family.port.logits.clear()
        with torch.inference_mode():
            with set_forward_context(None, family.whole.config, num_tokens=rows):
                expected = family.whole.model.get_submodule(block)(hidden.clone())
            with set_forward_context(None, family.attention.config, num_tokens=rows):
                found = family.attention.model.get_submodule(block)(hidden.clone())
        yield layer, expected, found, list(family.port.logits)


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_each_block_computes_bit_for_bit_what_the_whole_models_computes(family: Family, rows: int) -> None:
    for layer, expected, found, logits in blocks(family, rows):
        assert torch.equal(found, expected), layer
        if layer == 0:
            assert logits == ([] if family.keep.dense else [None])
        else:
            [sent] = logits
            assert (sent is not None) == family.keep.gate
            assert sent is None or (sent.shape, sent.dtype) == ((rows, 8), torch.bfloat16)


def test_logits_of_a_gate_in_float32_travel_as_they_are(checkpoint: Callable[[str], Path]) -> None:
    folder, exchange, kind = checkpoint("deepseek-v3"), Exchange(), {"moe_router_dtype": "float32"}
    whole = build(folder, None, hf_overrides=kind)
    attention = build(folder, Part("attention", exchange, GATE), hf_overrides=kind)
    ffn = build(folder, Part("ffn", keep=GATE), hf_overrides=kind)
    port = Straight(ffn, GATE)
    exchange.connect(port, 0, AllRows())  # type: ignore[arg-type]
    family = Family("deepseek-v3", GATE, whole, attention, ffn, port)
    for layer, expected, found, logits in blocks(family, 5):
        assert torch.equal(found, expected), layer
        assert [sent.dtype for sent in logits if sent is not None] == [torch.float32] * (layer > 0)


def test_logits_where_none_are_expected_are_refused(family: Family) -> None:
    replay = Replay(family.ffn.model, family.ffn.stages, family.keep)
    hidden, logits = torch.zeros(1, 4), None if family.keep.gate else torch.zeros(1, 8)
    with pytest.raises(ValueError, match=r"Expected layer 1 with(out)? router logits, found (none|some): set compute"):
        replay(1, hidden, logits)


@pytest.mark.parametrize("part", [Part("attention", Exchange(), SHARED), Part("ffn", keep=SHARED)])
def test_a_model_without_shared_experts_cannot_keep_them(checkpoint: Callable[[str], Path], part: Part) -> None:
    with pytest.raises(
        ValueError, match=r"^shared_experts_on_attention needs .*, found none at model.layers.1.mlp.exp"
    ):
        build(checkpoint("qwen3-moe"), part)


@pytest.mark.parametrize("part", [Part("attention", Exchange(), DENSE), Part("ffn", keep=DENSE)])
def test_a_model_without_dense_layers_cannot_keep_them(checkpoint: Callable[[str], Path], part: Part) -> None:
    with pytest.raises(ValueError, match=r"^dense_layers_on_attention needs .*, found none among the 4 of Qwen3Moe"):
        build(checkpoint("qwen3-moe"), part, load_format="dummy", hf_overrides={"mlp_only_layers": []})


def test_shared_experts_that_are_scaled_in_float16_cannot_be_kept(checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(
        ValueError, match=r"^shared_experts_on_attention needs .*, found some that vLLM scales in float"
    ):
        build(checkpoint("deepseek-v3"), Part("ffn", keep=SHARED), dtype="float16")


@pytest.mark.parametrize("keep", [GATE, SHARED])
@pytest.mark.parametrize("role", ["attention", "ffn"])
def test_a_block_that_is_exchanged_as_a_whole_keeps_its_parts_together(role: Role, keep: Keep) -> None:
    _, spec = find(["Glm4MoeForCausalLM"])
    with (
        pytest.raises(ValueError, match=r"_on_attention needs .*, found Glm4\w+, of which AFD exchanges whole Glm4MoE"),
        cut(spec, role, Exchange(), keep),
    ):
        pass


@pytest.mark.parametrize(
    ("arguments", "found"),
    [({}, "none"), ({"gate": nn.Linear(2, 2), "shared_expert_gate": nn.Linear(2, 1)}, "one that vLLM combines with a")],
)
def test_experts_without_a_gate_of_their_own_cannot_leave_it_to_attention(
    arguments: dict[str, object], found: str
) -> None:
    with pytest.raises(ValueError, match=rf"^compute_gate_on_attention needs .*, found {found}"):
        without(GATE, nn.Identity)(prefix="model.layers.1.mlp.experts", **arguments)
