"""Quantised checkpoints: each role loads its part where vLLM loads the whole, and refuses as vLLM refuses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from afd_models.exchange import Exchange
from afd_models.wrappers import Part
from tests.support.built import build
from tools import toy_checkpoint
from tools.toy_checkpoint.quantized import METHODS

pytestmark = pytest.mark.usefixtures("distributed")
ATTENTION, FFN = Part("attention", Exchange()), Part("ffn")


@dataclass(frozen=True, slots=True)
class Loaded:
    """Parameters by name, or how loading failed."""

    parameters: dict[str, torch.Tensor]
    failure: str = ""


def load(folder: Path, part: Part | None) -> Loaded:
    try:
        return Loaded(build(folder, part).parameters)
    except (ValueError, NotImplementedError) as error:  # what vLLM raises where it has no kernel for this processor
        return Loaded({}, f"{type(error).__name__}: {error}")


def make(folder: Path, method: str, *, experts: bool) -> Path:
    changes = {"moe_intermediate_size": 128, "head_dim": 32, "num_key_value_heads": 4}
    return toy_checkpoint.make("qwen3-moe", folder, layers=2, changes=changes, method=method, experts=experts)


def assert_same(part: Loaded, whole: Loaded) -> None:
    assert part.failure == ""
    assert part.parameters
    for name, value in part.parameters.items():
        other = whole.parameters[name]
        assert torch.equal(value.view(torch.uint8), other.view(torch.uint8)), name


@pytest.mark.parametrize("method", METHODS)
def test_quantised_experts_are_the_ffn_roles_alone(method: str, tmp_path: Path) -> None:
    folder = make(tmp_path, method, experts=True)
    whole, attention, ffn = (load(folder, part) for part in (None, ATTENTION, FFN))
    assert ffn.failure == whole.failure
    if not whole.failure:  # a processor for which vLLM has quantised experts
        assert_same(attention, whole)
        assert_same(ffn, whole)
        assert set(attention.parameters) | set(ffn.parameters) == set(whole.parameters)
    if method != "fp8":  # attention's own projections need a kernel too, which for fp8 not every processor has
        assert attention.failure == ""
    assert not any(".experts." in name for name in attention.parameters)


@pytest.mark.parametrize("method", [each for each in METHODS if each != "fp8"])
def test_attention_is_quantised_alone_and_both_roles_hold_what_native_holds(method: str, tmp_path: Path) -> None:
    folder = make(tmp_path, method, experts=False)
    whole = load(folder, None)
    assert whole.failure == ""
    for part in (ATTENTION, FFN):
        assert_same(load(folder, part), whole)
