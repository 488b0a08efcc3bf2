"""Balanced routing through vLLM's own simulator: unregistered unless asked, equal shares, and the gate on FFN."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter
from vllm.model_executor.layers.fused_moe.router.routing_simulator_router import RoutingSimulator

from afd_models.balanced import Balanced
from afd_models.stages import Replay
from afd_models.wrappers import Part
from afd_workers import routing
from tests.support.built import build
from tests.support.checkpoints import Checkpoint

EXPERTS = 8


@pytest.fixture
def strategies(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The simulator's registry, as it was before after the test."""
    known: dict[str, object] = dict(RoutingSimulator._routing_strategies)
    monkeypatch.setattr(RoutingSimulator, "_routing_strategies", known)
    return known


@given(rows=st.integers(0, 70), experts=st.integers(1, 20), data=st.data())
def test_shares_differ_by_at_most_one_and_no_token_goes_twice_to_an_expert(
    rows: int, experts: int, data: st.DataObject
) -> None:
    top_k = data.draw(st.integers(1, experts))
    weights, chosen = Balanced().route_tokens(torch.zeros(rows, 4), torch.rand(rows, experts), top_k, torch.int32)
    counts = torch.bincount(chosen.flatten(), minlength=experts)
    assert chosen.shape == weights.shape == (rows, top_k)
    assert chosen.dtype == torch.int32
    assert counts.max() - counts.min() <= 1
    assert all(len(set(row)) == top_k for row in chosen.tolist())
    assert torch.allclose(weights.sum(dim=1), torch.ones(rows))


@pytest.mark.parametrize("asked", ["", "uniform_random", "balanced"])
def test_it_is_registered_only_when_asked(
    strategies: dict[str, object], monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    before = dict(strategies)
    monkeypatch.setenv(routing.VARIABLE, asked)
    routing.offer_if_asked()
    added = {name for name in strategies if name not in before}
    assert added == ({"balanced"} if asked == "balanced" else set())
    assert {name: strategies[name] for name in before} == before


@pytest.mark.usefixtures("distributed", "strategies")
def test_the_ffn_role_routes_by_it_in_every_sparse_layer(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(routing.VARIABLE, routing.BALANCED)
    routing.offer_if_asked()
    seen: list[torch.Tensor] = []
    native = BaseRouter.select_experts

    def noting(self: BaseRouter, *args: object, **kwargs: object) -> tuple[torch.Tensor, torch.Tensor]:
        weights, chosen = native(self, *args, **kwargs)
        seen.append(chosen)
        return weights, chosen

    monkeypatch.setattr(BaseRouter, "select_experts", noting)
    folder: Path = checkpoint("qwen3-moe")
    ffn = build(folder, Part("ffn"))
    replay, rows = Replay(ffn.model, ffn.stages), torch.randn(13, 128, dtype=torch.bfloat16)
    with torch.inference_mode(), set_forward_context(None, ffn.config, num_tokens=13):
        results = [replay(stage.layer, rows) for stage in ffn.stages if stage.sparse]
    assert all(result.isfinite().all() for result in results)
    assert len(seen) == len(results) == 3
    for chosen in seen:
        counts = torch.bincount(chosen.flatten().long(), minlength=EXPERTS)
        assert sorted(counts.tolist()) == [3] * 6 + [4] * 2
