"""Both parts of a model, loaded from one checkpoint by vLLM's own loader, against the whole model."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.kv_cache_interface import MambaSpec

from afd_models.exchange import Exchange
from afd_models.families import find
from afd_models.memory import sizes
from afd_models.pieces import TRAITS
from afd_models.postconditions import CutError, check
from afd_models.spec import MoE
from afd_models.stages import Replay, find_stages
from afd_models.standins import Absent, RemoteBlock, RemoteExperts, RemoteFFNProxy
from afd_models.wrappers import Part, selected
from tests.support.built import Built, build
from tools.family_table import role_sizes
from tools.toy_checkpoint import FAMILIES
from tools.toy_checkpoint.parts import Toy

#: Layers with a dense FFN, by toy; none in the others.
DENSE = {
    "deepseek-v1": (0,), "deepseek-v2": (0,), "deepseek-v3": (0,), "ernie4.5-moe": (0,), "glm4-moe": (0,),
    "kimi-k2": (0,), "llama4": (0, 2), "qwen2-moe": (0,), "qwen3-moe": (0,), "qwen3-next": (0,),
}  # fmt: skip
BUILDABLE = sorted(name for name, toy in FAMILIES.items() if find_spec(toy.needs))
RUNNABLE = [name for name in BUILDABLE if not FAMILIES[name].not_on_cpu]
#: Where vLLM's parameters after loading are not the checkpoint's: latent attention keeps a product of projections too.
REPACKED = ("deepseek-v2", "deepseek-v3", "kimi-k2")
LAYERS = 4
pytestmark = pytest.mark.usefixtures("distributed")


@dataclass(frozen=True, slots=True)
class Family:
    """The whole model and both parts, their declaration, and which layers are dense."""

    toy: Toy
    spec: MoE
    dense: tuple[int, ...]
    whole: Built
    attention: Built
    ffn: Built


@pytest.fixture(scope="module", params=BUILDABLE)
def family(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> Family:
    folder = checkpoint(request.param)
    whole = build(folder)
    _, spec = find(whole.config.model_config.architectures)
    dense = DENSE.get(request.param, ())
    return Family(
        FAMILIES[request.param],
        spec,
        dense,
        whole,
        build(folder, Part("attention", Exchange())),
        build(folder, Part("ffn")),
    )


def test_parts_hold_the_whole_model_and_share_only_the_gate(family: Family) -> None:
    attention, ffn = set(family.attention.parameters), set(family.ffn.parameters)
    assert attention | ffn == set(family.whole.parameters)
    assert all(any(f".{part}." in name for part in family.spec.overlap) for name in attention & ffn)
    assert bool(attention & ffn) == (not family.spec.block)


def test_every_parameter_is_loaded_with_the_whole_models_value(family: Family) -> None:
    whole = family.whole.parameters
    for part in (family.attention, family.ffn):
        for name, value in part.parameters.items():
            assert torch.equal(value, whole[name]), name


def test_attention_holds_no_expert_and_ffn_no_attention(family: Family) -> None:
    attention = [name for name in family.attention.parameters if "shared_expert_gate" not in name]
    assert not any(".experts." in name or ".shared_expert" in name for name in attention)
    assert not any("attn" in n or "norm" in n or "embed" in n or "lm_head" in n for n in family.ffn.parameters)
    context = family.ffn.config.compilation_config.static_forward_context
    assert not any(isinstance(layer, AttentionLayerBase) for layer in context.values())


@pytest.mark.parametrize(
    "family", [name for name in BUILDABLE if FAMILIES[name].config["architectures"][0] in TRAITS], indirect=True
)
def test_sizes_from_the_config_alone_are_what_vllm_allocates(family: Family) -> None:
    config = json.loads((Path(family.whole.config.model_config.model) / "config.json").read_text())
    found = sizes(config)
    whole, attention, ffn = (built.nbytes for built in (family.whole, family.attention, family.ffn))
    if any(getattr(module, "is_amx_bmm_enabled", False) for module in family.whole.model.modules()):
        assert found.ffn == ffn  # on such a CPU vLLM packs latent attention's weights and lets the originals go
    else:
        assert (found.whole, found.attention, found.ffn) == (whole, attention, ffn)
    context = family.attention.config.compilation_config.static_forward_context.values()
    layers = [layer for layer in context if isinstance(layer, AttentionLayerBase)]
    specs = [layer.get_kv_cache_spec(family.attention.config) for layer in layers]
    cached = [spec for spec in specs if not isinstance(spec, MambaSpec)]
    assert found.kv_per_token == sum(spec.page_size_bytes // spec.block_size for spec in cached)


@pytest.mark.parametrize("family", [name for name in BUILDABLE if name not in REPACKED], indirect=True)
def test_role_sizes_are_those_of_the_table(family: Family) -> None:
    built = (family.whole, family.attention, family.ffn)
    assert role_sizes(family.toy, family.spec) == tuple(part.numel for part in built)


def test_both_roles_mean_the_same_stages(family: Family) -> None:
    assert family.attention.stages == family.ffn.stages
    assert [stage.layer for stage in family.ffn.stages] == list(range(LAYERS))
    assert [stage.sparse for stage in family.ffn.stages] == [n not in family.dense for n in range(LAYERS)]
    sparse = RemoteBlock if family.spec.block else RemoteExperts
    for stage in family.attention.stages:
        stand_in = family.attention.model.get_submodule(stage.path)
        assert isinstance(stand_in, sparse if stage.sparse else RemoteFFNProxy)


@pytest.mark.parametrize("family", RUNNABLE, indirect=True)
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_each_stage_computes_bit_for_bit_what_the_whole_model_computes(family: Family, rows: int) -> None:
    replay = Replay(family.ffn.model, family.ffn.stages)
    whole = Replay(family.whole.model, family.ffn.stages)
    for stage in family.ffn.stages:
        torch.manual_seed(rows * 31 + stage.layer)
        hidden = torch.randn(rows, family.ffn.config.model_config.get_hidden_size(), dtype=torch.bfloat16)
        with torch.inference_mode():
            with set_forward_context(None, family.whole.config, num_tokens=rows):
                expected = whole(stage.layer, hidden.clone())
            with set_forward_context(None, family.ffn.config, num_tokens=rows):
                found = replay(stage.layer, hidden.clone())
        assert torch.equal(found, expected), stage


def test_a_layer_that_is_not_exchanged_is_named(family: Family) -> None:
    with pytest.raises(ValueError, match=r"Expected a layer of \[0, 1, 2, 3\], found 9"):
        Replay(family.ffn.model, family.ffn.stages)(9, torch.zeros(1, 1))


def test_the_native_class_and_its_names_are_untouched_afterwards(family: Family) -> None:
    config = family.ffn.config.model_config.hf_config
    assert not config.architectures[0].startswith("AFD")
    assert type(family.ffn.model).__name__ == f"AFD{config.architectures[0]}"
    assert not any(isinstance(module, (Absent, RemoteExperts)) for module in family.whole.model.modules())


def test_absent_modules_say_which_role_holds_them(family: Family) -> None:
    absent = {path: module for path, module in family.ffn.model.named_modules() if isinstance(module, Absent)}
    path, attention = next((path, module) for path, module in absent.items() if path.endswith("attn"))
    with pytest.raises(RuntimeError, match=rf"no call of {path} on this role"):
        attention(torch.zeros(1))


def test_an_unconnected_exchange_says_so(family: Family) -> None:
    for stage in family.attention.stages:
        stand_in, rows = family.attention.model.get_submodule(stage.path), torch.zeros(1, 4)
        with pytest.raises(RuntimeError, match="found no open port"):
            stand_in(rows) if stage.whole else stand_in(rows, rows)


def test_a_part_that_is_not_cut_is_refused_with_the_list_of_what_is_wrong(family: Family) -> None:
    spec = family.spec
    stages = find_stages(spec, family.whole.model)
    with pytest.raises(CutError, match=rf"{stages[0].path} is a native .*{stages[3].path} is a native"):
        check(spec, "attention", family.whole.model, stages, LAYERS)
    with pytest.raises(CutError, match=r"attention layer model\.layers\.0.*parameter model\.norm\.weight lies outside"):
        check(spec, "ffn", family.whole.model, stages, LAYERS)
    with pytest.raises(CutError, match=r"FFN stages for layers \[0, 1, 2\] instead of 0 to 3"):
        check(spec, "attention", family.attention.model, stages[:3], LAYERS)


def test_a_declared_name_that_vllm_lost_is_named(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from afd_models.cut import cut

    with (
        pytest.raises(ValueError, match=r"found no GoneAttention: this vLLM is not one"),
        cut(replace(family.spec, attention=("GoneAttention",)), "ffn", None),
    ):
        pass


def test_an_undeclared_model_is_refused_by_name(family: Family) -> None:
    config = copy.deepcopy(family.whole.config.model_config)
    config.hf_config.architectures = ["LlamaForCausalLM"]
    with (
        pytest.raises(ValueError, match=r"Expected a model of a declared family .*found LlamaForCausalLM"),
        selected(config, Part("ffn")),
    ):
        pass
