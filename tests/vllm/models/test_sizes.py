"""What `afd size` says of ranks and placements is what vLLM allocates for them; whole roles are in test_cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from vllm.distributed import parallel_state
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.kv_cache_interface import MambaSpec

from afd_models.exchange import Exchange
from afd_models.keep import Keep
from afd_models.memory import Split, sizes
from afd_models.wrappers import Part
from tests.support.built import Built, build
from tests.vllm.models.test_cut import BUILDABLE
from tools.family_table import placements
from tools.rank_of import rank_of
from tools.toy_checkpoint import FAMILIES

RANKS = 2
pytestmark = pytest.mark.usefixtures("distributed")


def packed(built: Built) -> bool:
    """Whether vLLM packs latent attention's weights and lets the originals go, as on processors with AMX."""
    return any(getattr(module, "is_amx_bmm_enabled", False) for module in built.model.modules())


@pytest.mark.parametrize("family", BUILDABLE)
def test_a_rank_of_several_holds_what_is_said(family: str, checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint(family)
    config = json.loads((folder / "config.json").read_text())
    # Whichever rank: it is the last one's part that divisions would leave short.
    with rank_of(RANKS, RANKS - 1):
        attention = build(folder, Part("attention", Exchange()), tensor_parallel_size=RANKS, load_format="dummy")
        ffn = {
            whole: build(folder, Part("ffn"), tensor_parallel_size=RANKS, enable_expert_parallel=whole,
                         load_format="dummy")
            for whole in (False, True)
        }  # fmt: skip
    for whole, built in ffn.items():
        assert sizes(config, Split(ffn_tp=RANKS, expert_parallel=whole)).ffn == built.nbytes
    found = sizes(config, Split(attention_tp=RANKS))
    if not packed(attention):
        assert found.attention == attention.nbytes
    context = attention.config.compilation_config.static_forward_context.values()
    specs = [layer.get_kv_cache_spec(attention.config) for layer in context if isinstance(layer, AttentionLayerBase)]
    assert found.kv_per_token == sum(s.page_size_bytes // s.block_size for s in specs if _cached(s))
    assert found.state_per_request == sum(spec.page_size_bytes for spec in specs if not _cached(spec))


@pytest.mark.parametrize("family", ["deepseek-v2", "qwen3-moe"])
def test_a_native_rank_of_expert_parallelism_holds_what_is_said(
    family: str, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared experts and dense FFNs are whole on each, as nobody else computes a rank's rows with them."""
    folder = checkpoint(family)
    config = json.loads((folder / "config.json").read_text())
    # Of a group that is only pretended: nothing is exchanged.
    exchange = SimpleNamespace(all2all_manager=SimpleNamespace(world_size=RANKS, rank=RANKS - 1))
    monkeypatch.setattr(parallel_state.get_ep_group(), "device_communicator", exchange)
    with rank_of(RANKS, RANKS - 1, groups=("_DP", "_EP")):
        whole = build(folder, data_parallel_size=RANKS, enable_expert_parallel=True, load_format="dummy")
    if not packed(whole):
        assert sizes(config, Split(data_parallel=RANKS)).whole == whole.nbytes


@pytest.mark.parametrize("family", [name for name in BUILDABLE if placements(FAMILIES[name])])
def test_what_attention_keeps_is_held_where_it_is_said(family: str, checkpoint: Callable[[str], Path]) -> None:
    folder, keep = checkpoint(family), Keep(**dict.fromkeys(placements(FAMILIES[family]), True))
    config = json.loads((folder / "config.json").read_text())
    split = Split(gate_on_attention=keep.gate, shared_on_attention=keep.shared, dense_on_attention=keep.dense)
    found = sizes(config, split)
    for said, part in ((found.attention, Part("attention", Exchange(), keep)), (found.ffn, Part("ffn", keep=keep))):
        built = build(folder, part, load_format="dummy")
        if not packed(built):
            assert said == built.nbytes


def _cached(spec: object) -> bool:
    return not isinstance(spec, MambaSpec)
