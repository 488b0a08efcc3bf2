"""``afd models``: the table, and proposals made from the text of a vLLM."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

from afd_compat.snapshot import Snapshot
from afd_compat.source import open_tree
from afd_models.families import load, refused
from afd_models.propose import propose, text
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


def test_a_toy_vllm_is_read_as_text(tmp_path: Path) -> None:
    snapshot = toy(tmp_path, NEW)
    spec = propose("NewForCausalLM", snapshot).spec
    assert spec is not None
    assert (spec.attention, spec.experts, spec.dense) == (("NewAttention",), "Experts", ("NewMLP", "SharedMLP"))
    assert (spec.ffn, spec.inner, spec.block, spec.vllm) == ("ffn", "parts", "NewBlock", ">=9.8,<9.9")
    ast.parse(text(spec))
    assert propose("Odd", snapshot).missing == (
        "No class of vllm.model_executor.models.odd gives itself experts made by vLLM's fused_moe layers.",
    )
    with pytest.raises(
        ValueError, match=r"^Expected an architecture of vLLM 9\.8\.7, found 'NewForCausal': name one .*NewFor"
    ):
        propose("NewForCausal", snapshot)


def toy(folder: Path, new: str, version: str = "9.8.7") -> Snapshot:
    """A vLLM of two models, one of them ``new``."""
    models = folder / "vllm" / "model_executor" / "models"
    models.mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text("")
    (folder / "vllm" / "_version.py").write_text(f"__version__ = {version!r}\n")
    (models / "registry.py").write_text('_M = {"NewForCausalLM": ("new", "NewForCausalLM"), "Odd": ("odd", "Odd")}\n')
    (models / "odd.py").write_text("class Odd: ...\n")
    (models / "new.py").write_text(new)
    return Snapshot(open_tree(folder))


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("self.self_attn = attend()", "self.self_attn = nn.ModuleList()", r"\.new makes attention as a nn\.ModuleList"),
        (
            "class NewForCausalLM:",
            (
                "class Other:\n    def __init__(self):\n        self.ffn = NewBlock()\n\n"
                "class NewForCausalLM:\n    also = Other\n"
            ),
            r"\.new also has experts in (Other|NewLayer), which a declaration made from (NewLayer|Other) leaves out",
        ),
    ],
)
def test_what_a_declaration_would_leave_out_is_said(old: str, new: str, sentence: str, tmp_path: Path) -> None:
    proposal = propose("NewForCausalLM", toy(tmp_path, NEW.replace(old, new)))
    assert proposal.spec is None
    assert re.search(sentence, " ".join(proposal.missing))


def test_a_release_candidate_is_of_its_minor_release_and_no_version_of_none(tmp_path: Path) -> None:
    spec = propose("NewForCausalLM", toy(tmp_path / "rc", NEW, "0.31rc1")).spec
    assert spec is not None
    assert spec.vllm == ">=0.31,<0.32"
    with pytest.raises(ValueError, match="Expected a vLLM that states its version, found 'dev'"):
        propose("NewForCausalLM", toy(tmp_path / "dev", NEW, "dev"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["Qwen3MoeForCausalLM"],
            "found Qwen3MoeForCausalLM, declared in afd_models/families/qwen3_moe.py: edit or remove it",
        ),
        (["DeepseekV32ForCausalLM"], "AFD does not carry DeepseekV32ForCausalLM ("),
        (["NewForCausalLM", "--write", "{folder}/none"], "a folder that exists for --write, found"),
        (["NewForCausalLM", "--config", "{folder}/none"], "Expected a checkpoint with a config.json"),
        (["NewForCausalLM", "--config", "{folder}/other"], "Expected NewForCausalLM among the architectures in"),
        (["NewForCausalLM", "--config", "{folder}/list"], "found []: name a checkpoint"),
        (["NewForCausalLM", "--config", "{folder}/deep"], "Expected JSON in"),
    ],
)
def test_new_says_what_it_needs_before_it_writes(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, config in (("other", '{"architectures": ["Odd"]}'), ("list", "[]"), ("deep", "[" * 100_000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(config)
    given = [argument.format(folder=tmp_path) for argument in arguments]
    write = [] if "--write" in given else ["--write", str(tmp_path)]
    assert cli.main(["models", "new", *given, *write]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert not list(tmp_path.glob("*.py"))


def test_only_whole_name_parts_overlap_and_none_of_a_block() -> None:
    spec = load()["Qwen3MoeForCausalLM"]
    assert spec.overlaps("model.layers.0.mlp.gate.weight")
    assert not spec.overlaps("model.layers.0.mlp.shared_expert.gate_proj.weight")
    assert not replace(spec, block="Block").overlaps("model.layers.0.mlp.gate.weight")


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
