"""``afd models``: the table, and proposals made from the text of a vLLM."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from afd_models.families import load, refused
from afd_workers import cli
from afd_workers.commands.models import file_name, table


def test_the_table_has_every_family_with_its_range_or_its_reason() -> None:
    lines = "\n".join(table())
    for arch, spec in load().items():
        assert f"{arch}" in lines
        assert f"{spec.module}, vLLM {spec.vllm}" in lines
    for arch, entry in refused().items():
        assert arch in lines
        assert f"refused, {entry.reason}; {entry.instead}" in lines


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models"]) == 0
    assert capsys.readouterr().out.splitlines() == table()


@pytest.mark.parametrize(
    ("arch", "name"),
    [("Qwen3MoeForCausalLM", "qwen3_moe"), ("Glm4MoeForCausalLM", "glm4_moe"), ("MixtralForCausalLM", "mixtral")],
)
def test_a_file_is_named_after_its_architecture(arch: str, name: str) -> None:
    assert file_name(arch) == name


def test_a_toy_vllm_is_read_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from afd_compat.snapshot import Snapshot
    from afd_compat.source import open_tree
    from afd_models.propose import propose, text

    models = tmp_path / "vllm" / "model_executor" / "models"
    models.mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").write_text("")
    (tmp_path / "vllm" / "_version.py").write_text("__version__ = '9.8.7'\n")
    (models / "registry.py").write_text('_M = {"NewForCausalLM": ("new", "NewForCausalLM"), "Odd": ("odd", "Odd")}\n')
    (models / "odd.py").write_text("class Odd: ...\n")
    (models / "new.py").write_text(NEW)
    snapshot = Snapshot(open_tree(tmp_path))
    spec = propose("NewForCausalLM", snapshot).spec
    assert spec is not None
    assert (spec.attention, spec.experts, spec.dense) == (("NewAttention",), "Experts", ("NewMLP", "SharedMLP"))
    assert (spec.ffn, spec.inner, spec.block, spec.vllm) == ("ffn", "parts", "NewBlock", ">=9.8,<9.9")
    ast.parse(text(spec))
    assert propose("Odd", snapshot).missing == (
        "No class of vllm.model_executor.models.odd gives itself experts made by vLLM's fused_moe layers.",
    )
    with pytest.raises(
        ValueError, match=r"^Expected an architecture of vLLM 9\.8\.7, found NewForCausal: name one .*NewFor"
    ):
        propose("NewForCausal", snapshot)


NEW = """
from vllm.model_executor.layers.fused_moe import Experts

class NewAttention: ...
class NewMLP: ...
class SharedMLP: ...

class NewBlock:
    def __init__(self):
        self.shared = SharedMLP()
        self.gate = Linear()
        self.parts = Experts(num_experts=8, shared_experts=self.shared)

class NewLayer:
    def __init__(self, index):
        attend = NewAttention
        self.self_attn = attend()
        if index:
            self.ffn = NewBlock()
        else:
            self.ffn = NewMLP()
        self.post_attention_layernorm = RMSNorm()

class NewForCausalLM:
    def __init__(self):
        self.layers = make_layers(lambda prefix: NewLayer(prefix))
"""
