"""Each role reads only what it holds: which files are opened and which tensors are read, exactly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn
from vllm.model_executor.layers.fused_moe.expert_map_manager import determine_expert_map
from vllm.model_executor.model_loader import default_loader, ep_weight_filter, weight_utils
from vllm.model_executor.model_loader.ep_weight_filter import parse_expert_id
from vllm.model_executor.models.utils import WeightsMapper

from afd_compat.patches.weight_reading import reading_only
from afd_models.exchange import Exchange
from afd_models.needed import Needed
from afd_models.standins import Absent
from afd_models.wrappers import Part
from tests.support.built import build
from tools import toy_checkpoint
from tools.rank_of import rank_of
from tools.reads import Reads, recorded

SHARDS = 40
Rule = Callable[[str], bool]


def attention_needs(name: str) -> bool:
    return ".mlp." not in name or ".mlp.gate." in name


def ffn_needs(name: str) -> bool:
    return ".mlp." in name


ROLES: dict[str, tuple[Part, Rule]] = {
    "attention": (Part("attention", Exchange()), attention_needs),
    "ffn": (Part("ffn"), ffn_needs),
}


def load(folder: Path, part: Part, **options: object) -> Reads:
    """Loads one part with vLLM's loader, which itself raises for a parameter that was not loaded."""
    with recorded() as reads:
        build(folder, part, **options)
    return reads


@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize("family", ["deepseek-v2", "deepseek-v3", "qwen3-moe"])
def test_a_role_opens_exactly_the_files_and_reads_exactly_the_tensors_that_it_needs(
    family: str, tmp_path: Path
) -> None:
    folder = toy_checkpoint.make(family, tmp_path, shards=SHARDS)
    homes: dict[str, str] = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    for role, (part, needs) in ROLES.items():
        reads = load(folder, part)
        assert set(reads.tensors) == {name for name in homes if needs(name)}, role
        assert reads.files == {home for name, home in homes.items() if needs(name)}, role
        assert len(reads.files) < len(set(homes.values())), role


@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize(("family", "experts", "ranks"), [("qwen3-moe", 6, 4), ("deepseek-v3", 8, 2)])
def test_an_expert_parallel_ffn_rank_reads_and_holds_its_own_experts(
    family: str, experts: int, ranks: int, tmp_path: Path
) -> None:
    counts = {"num_experts": experts, "n_routed_experts": experts, "num_key_value_heads": 4}
    folder = toy_checkpoint.make(family, tmp_path, layers=2, shards=SHARDS, changes=counts)
    homes: dict[str, str] = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    alone = load(folder, Part("ffn")).tensors
    read: dict[str, int] = {}
    for rank in range(ranks):
        count, places, _ = determine_expert_map(ranks, rank, experts)
        assert places is not None
        own = {expert for expert in range(experts) if places[expert] >= 0}
        with rank_of(ranks, rank), recorded() as reads:
            built = build(folder, Part("ffn"), tensor_parallel_size=ranks, enable_expert_parallel=True)
        foreign = set(range(experts)) - own
        wanted = {name for name in homes if ffn_needs(name) and parse_expert_id(name) not in foreign}
        assert set(reads.tensors) == wanted
        assert reads.files == {homes[name] for name in wanted} < set(homes.values())
        held = [value for name, value in built.parameters.items() if ".routed_experts." in name]
        assert {value.shape[0] for value in held} == {count}
        of_experts = sum(size for name, size in reads.tensors.items() if ".experts." in name)
        assert sum(value.nbytes for value in held) == of_experts
        read |= reads.tensors
    assert read == alone


@pytest.mark.usefixtures("distributed")
def test_without_an_index_tensors_are_still_left_out(tmp_path: Path) -> None:
    folder = toy_checkpoint.make("qwen3-moe", tmp_path)
    part, needs = ROLES["attention"]
    reads = load(folder, part)
    assert reads.files == {"model.safetensors"}
    assert reads.tensors
    assert all(needs(name) for name in reads.tensors)


def test_the_experts_of_other_ranks_are_skipped_by_what_the_model_holds() -> None:
    with reading_only(lambda name: "mlp" in name, frozenset({0, 2})):
        skipped = weight_utils.should_skip_weight
        for expert in range(4):
            assert skipped(f"layers.0.mlp.experts.{expert}.up_proj.weight", None) == (expert not in (0, 2))
        assert not skipped("layers.0.mlp.experts.1.up_proj.weight_scale", None), "some kernels want all scales"
        assert skipped("layers.0.mlp.experts.0.up_proj.weight", {1}), "vLLM's own set counts where it has one"


def test_vllms_functions_are_its_own_outside_and_still_asked_inside() -> None:
    native = ep_weight_filter.should_skip_weight, weight_utils.filter_duplicate_safetensors_files
    foreign, own = "layers.0.mlp.experts.1.up_proj.weight", "layers.0.mlp.experts.0.up_proj.weight"
    with reading_only(lambda name: "mlp" in name):
        assert weight_utils.should_skip_weight(foreign, {0})
        assert not weight_utils.should_skip_weight(own, {0})
        assert not weight_utils.should_skip_weight(foreign, None)
        assert weight_utils.should_skip_weight("layers.0.self_attn.q_proj.weight", None)
        assert default_loader.filter_duplicate_safetensors_files is not native[1]
    assert (weight_utils.should_skip_weight, default_loader.filter_duplicate_safetensors_files) == native


class Model(nn.Module):
    """Two decoder layers whose attention is absent."""

    def __init__(self) -> None:
        super().__init__()
        layer = {"self_attn": Absent(prefix="self_attn"), "mlp": nn.Linear(2, 2)}
        self.model = nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleDict(layer), nn.ModuleDict(layer)])})


def test_what_is_not_surely_foreign_is_read() -> None:
    needed = Needed(Model())
    assert not needed("model.layers.0.self_attn.q_proj.weight")
    assert not needed("model.layers.1.self_attn.rotary.inv_freq")
    assert not needed("model.layers.2.mlp.weight"), "a layer that the model does not have"
    assert needed("model.layers.1.mlp.weight")
    assert needed("model.layers.1.mlp.experts.0.weight")
    assert needed("model.layers.1.other.weight")
    assert needed("transformer.h.0.self_attn.q_proj.weight")
    assert needed("weight")


def test_names_are_taken_as_the_model_maps_them() -> None:
    model = Model()
    model.hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={"language_model.": ""}, orig_to_new_substr={"attention": "self_attn", "audio": None}
    )
    needed = Needed(model)
    assert not needed("language_model.model.layers.0.attention.q_proj.weight")
    assert needed("language_model.model.layers.0.mlp.weight")
    assert needed("audio.weight")


def test_a_model_with_further_sources_of_weights_reads_everything() -> None:
    model = Model()
    model.secondary_weights = ["another source"]
    assert Needed(model)("model.layers.0.self_attn.q_proj.weight")
