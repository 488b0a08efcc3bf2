"""Where attention keeps parts of the FFNs, the split model's greedy tokens are native vLLM's, and less is exchanged."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from afd_compat.config import Config
from afd_connectors.shape import Shape
from afd_workers import links
from tests.support.checkpoints import Checkpoint
from tests.support.offline import Outcome, Run
from tests.support.prompts import prompts
from tests.support.servers import OPTIONS, forked, roles, section_of

pytestmark = pytest.mark.timeout(300)
BATCHES = [prompts(8, 3, 40, seed=2), prompts(4, 40, 80, seed=3)]
TOKENS = 24
GATE, DENSE = {"compute_gate_on_attention": True}, {"dense_layers_on_attention": True}
KEPT = {"deepseek-v3": {**GATE, **DENSE, "shared_experts_on_attention": True}, "qwen3-moe": {**GATE, **DENSE}}
EXCHANGED = 3  # of four layers, the first of which is dense


@dataclass(frozen=True, slots=True)
class Runs:
    """The same batches on native vLLM and on both roles."""

    native: Outcome
    split: Outcome


@pytest.fixture(scope="module", params=KEPT)
def runs(request: pytest.FixtureRequest, checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    model, folder = checkpoint(request.param), tmp_path_factory.mktemp("runs")
    attention, ffn = roles(model, (*OPTIONS, "--max-num-batched-tokens=512"), connector="shm", **KEPT[request.param])
    options = {"model": str(model), "max_model_len": 512, "max_num_batched_tokens": 512}
    with forked(ffn, folder):
        split = Run(folder, {**options, "additional_config": section_of(attention)}, BATCHES, tokens=TOKENS)
        parted = split.outcome()
    return Runs(Run(folder, options, BATCHES, tokens=TOKENS).outcome(), parted)


@pytest.mark.parametrize(
    ("key", "fact"),
    [
        ("compute_gate_on_attention", "gate"),
        ("shared_experts_on_attention", "shared"),
        ("dense_layers_on_attention", "dense"),
    ],
)
def test_roles_that_keep_different_parts_do_not_agree(tmp_path: Path, key: str, fact: str) -> None:
    model = SimpleNamespace(model=str(tmp_path))
    plain, other = (
        links._facts(model, Config.parse({"role": "ffn", **section}, {}), Shape(4, 8, "bfloat16", 3), {})
        for section in ({}, {key: True})
    )
    assert plain.difference(other) == (fact, "ffn", "attention")


def test_the_tokens_are_native(runs: Runs) -> None:
    assert all(len(tokens) == TOKENS for batch in runs.native.tokens for tokens in batch)
    assert runs.split.tokens == runs.native.tokens


def test_only_what_is_remote_is_exchanged(runs: Runs) -> None:
    figures = runs.split.figures
    assert figures is not None
    assert figures["exchanges"] == EXCHANGED * figures["steps"]
