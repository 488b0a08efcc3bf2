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


def test_experts_are_stored_in_mxfp4_as_transformers_reads_them(tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    plain, packed = (
        load_file(toy_checkpoint.make("gpt-oss", tmp_path / name, layers=1, method=method) / "model.safetensors")
        for name, method in (("plain", None), ("packed", "mxfp4"))
    )
    for kind in ("gate_up_proj", "down_proj"):
        name = f"model.layers.0.mlp.experts.{kind}"
        found = convert_moe_packed_tensors(packed.pop(f"{name}_blocks"), packed.pop(f"{name}_scales"))
        exact = plain.pop(name)
        # The largest of 32 may be all but 8 where 6 is the largest that there is.
        assert (found.float() - exact.float()).abs().max() <= exact.float().abs().max() / 4
        assert torch.corrcoef(torch.stack((found.flatten().float(), exact.flatten().float())))[0, 1] > 0.99
    assert packed.keys() == plain.keys()
