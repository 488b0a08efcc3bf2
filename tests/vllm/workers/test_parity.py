"""The parity bar: greedy tokens of the split model equal native vLLM's on the same checkpoint, offline."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.support.checkpoints import Checkpoint
from tests.support.offline import Outcome, Run
from tests.support.prompts import prompts
from tests.support.servers import OPTIONS, forked, roles, section_of

LAYERS = 4
pytestmark = pytest.mark.timeout(600)  # starting servers takes a minute or two
TOKENS = 48
#: Small enough that the long prompts are prefilled in chunks; prefix caching is on by default for Qwen3-MoE.
CHUNKED = {"max_num_batched_tokens": 64, "max_num_seqs": 16, "enable_chunked_prefill": True}
SINGLES = [[prompt] for prompt in prompts(8, 3, 40, seed=1)]
BATCH = prompts(8, 3, 40, seed=2)
LONG = prompts(8, 150, 300, seed=3, shared=130)
BATCHES = [*SINGLES, BATCH, LONG, LONG]


@dataclass(frozen=True, slots=True)
class Runs:
    """The same batches on native vLLM and on an attention engine with an FFN server beside it."""

    family: str
    native: Outcome
    split: Outcome
    without_plugin: Outcome


@pytest.fixture(scope="module", params=["qwen3-moe", "deepseek-v2"])
def runs(request: pytest.FixtureRequest, checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    family: str = request.param
    model, folder = checkpoint(family), tmp_path_factory.mktemp("runs")
    chunked = CHUNKED if family == "qwen3-moe" else {}
    flags = tuple(
        f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}") for name, value in chunked.items()
    )
    options = {"model": str(model), "max_model_len": 512, **chunked}
    attention, ffn = roles(model, (*OPTIONS, *flags))
    with forked(ffn, folder):
        split = Run(folder, {**options, "additional_config": section_of(attention)}, BATCHES, tokens=TOKENS)
        native = Run(folder, options, BATCHES, tokens=TOKENS)
        parted, whole = split.outcome(), native.outcome()
    bare = Run(folder, options, BATCHES, tokens=TOKENS, env={"VLLM_PLUGINS": ""}).outcome()
    return Runs(family, whole, parted, bare)


def test_single_prompts_give_the_native_tokens(runs: Runs) -> None:
    count = len(SINGLES)
    assert all(len(tokens) == TOKENS for [tokens] in runs.native.tokens[:count])
    assert runs.split.tokens[:count] == runs.native.tokens[:count]


def test_a_batch_gives_the_native_tokens(runs: Runs) -> None:
    assert runs.split.tokens[len(SINGLES)] == runs.native.tokens[len(SINGLES)]


def test_long_prompts_give_the_native_tokens_cold_and_cached(runs: Runs) -> None:
    assert runs.split.tokens[-2:] == runs.native.tokens[-2:]


def test_prefix_caching_works_as_natively(runs: Runs) -> None:
    assert runs.split.cached == runs.native.cached
    if runs.family == "qwen3-moe":  # vLLM switches it off for MLA on processors without AMX
        assert all(cached >= 128 for cached in runs.split.cached[-1])


def test_every_step_exchanges_every_layer_once(runs: Runs) -> None:
    figures = runs.split.figures
    assert figures is not None
    assert figures["exchanges"] == LAYERS * figures["steps"]
    chunks = 8 * 150 // 64 if runs.family == "qwen3-moe" else 0
    assert figures["steps"] >= len(BATCHES) * TOKENS + chunks


def test_the_attention_engine_runs_the_role_worker_and_the_cut_model(runs: Runs) -> None:
    assert runs.split.worker == "afd_workers.cpu.AttentionWorker"
    assert runs.split.model == f"AFD{runs.native.model}"
    assert runs.split.scheduler == runs.native.scheduler


def test_the_plugin_without_a_section_changes_nothing(runs: Runs) -> None:
    assert runs.native == runs.without_plugin
    assert runs.native.worker == "vllm.v1.worker.cpu_worker.CPUWorker"
