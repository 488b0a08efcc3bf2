"""Every family that vLLM runs on a CPU: split equals native, and native what transformers makes of the checkpoint.

transformers has no model for DeepSeek MoE, the first: tests.support.deepseek_v1 takes its place.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import deepseek_v1
from tests.support.checkpoints import Checkpoint
from tests.support.offline import Outcome, Run
from tests.support.prompts import prompts
from tests.support.servers import OPTIONS, forked, roles, section_of
from tools import toy_checkpoint

if TYPE_CHECKING:
    import torch

TOKENS = 24
PROMPTS = prompts(6, 3, 40, seed=4)
RUNNABLE = toy_checkpoint.runnable()
#: vLLM's CPU routing leaves ERNIE's bias out, so that native itself is far from transformers.
LIKE = [name for name in RUNNABLE if name != "ernie4.5-moe"]
#: vLLM's rotary kernel for CPUs turns the queries of latent attention by wrong positions; its torch code does not.
ROTARY = {"custom_ops": ["-rotary_embedding"]}
LATENT = ("deepseek-v2", "deepseek-v3", "kimi-k2")
#: How much further from transformers in float32 native vLLM may be than transformers in bfloat16 is, in the mean.
TOLERANCE = 1.5


@dataclass(frozen=True, slots=True)
class Runs:
    """One batch on native vLLM and on an attention engine with an FFN server beside it."""

    model: Path
    native: Outcome
    split: Outcome


@pytest.fixture(scope="module", params=RUNNABLE)
def runs(request: pytest.FixtureRequest, checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    model, folder = checkpoint(request.param), tmp_path_factory.mktemp("runs")
    options: dict[str, object] = {"model": str(model), "max_model_len": 512, "max_num_batched_tokens": 512}
    if request.param in LATENT:
        options["compilation_config"] = ROTARY
    flags = [*OPTIONS, "--max-num-batched-tokens", "512"]
    if toy_checkpoint.needs_trust(model):
        options["trust_remote_code"] = True
        flags.append("--trust-remote-code")
    attention, ffn = roles(model, tuple(flags))
    with forked(ffn, folder):
        section = {"additional_config": section_of(attention)}
        split = Run(folder, {**options, **section}, [PROMPTS], tokens=TOKENS, logprobs=True)
        native = Run(folder, options, [PROMPTS], tokens=TOKENS, logprobs=True)
        return Runs(model, native.outcome(), split.outcome())


def test_split_gives_the_native_tokens(runs: Runs) -> None:
    assert runs.split.model == f"AFD{runs.native.model}"
    [tokens] = runs.native.tokens
    assert len({tuple(each) for each in tokens}) == len(PROMPTS)
    assert runs.split.tokens == runs.native.tokens


def test_split_gives_the_native_log_probabilities_bit_for_bit(runs: Runs) -> None:
    [found] = runs.native.logprobs
    assert [len(each) for each in found] == [len(prompt) - 1 for prompt in PROMPTS]
    assert runs.split.logprobs == runs.native.logprobs


@pytest.mark.parametrize("runs", LIKE, indirect=True)
def test_native_is_transformers_within_the_tolerance_of_its_own_format(runs: Runs) -> None:
    import torch

    exact, rounded = (_transformers(runs.model, dtype) for dtype in (torch.float32, torch.bfloat16))
    native = [torch.tensor(each) for each in runs.native.logprobs[0]]
    assert _apart(native, exact) < TOLERANCE * _apart(rounded, exact)


def _apart(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """The mean absolute difference over all prompts, positions and tokens."""
    import torch

    return torch.cat([(a - b).abs() for a, b in zip(one, other, strict=True)]).mean().item()


def _transformers(model: Path, dtype: torch.dtype) -> list[torch.Tensor]:
    """Log-probabilities [positions, vocabulary] of every prompt."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES, model_type_to_module_name

    stated = json.loads((model / "config.json").read_text())
    if stated["model_type"] == "deepseek":
        built = deepseek_v1.Model(model, stated, dtype)
        return [built(torch.tensor(prompt))[:-1].float().log_softmax(-1) for prompt in PROMPTS]
    if stated["model_type"] == "kimi_k2":
        stated["model_type"] = "deepseek_v3"  # as vLLM reads it; transformers has no name for it
    # By its module: where a test of this process imported vLLM, its own classes answer for some names.
    module = import_module(f"transformers.models.{model_type_to_module_name(stated['model_type'])}")
    config = getattr(module, CONFIG_MAPPING_NAMES[stated["model_type"]])(**stated)
    built = AutoModelForCausalLM.from_pretrained(model, config=config, dtype=dtype)
    with torch.inference_mode():
        return [built(torch.tensor([prompt])).logits[0, :-1].float().log_softmax(-1) for prompt in PROMPTS]
