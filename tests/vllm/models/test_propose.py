"""What ``afd models new`` proposes for this vLLM: for every declared family, what is declared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from afd_compat.snapshot import Snapshot
from afd_compat.source import Tree
from afd_models.families import load
from afd_models.postconditions import CutError
from afd_models.propose import Proposal, propose, text
from afd_models.prove import prove
from afd_models.spec import MoE
from afd_workers import cli
from tools import family_table

SNAPSHOT = Snapshot(Tree())
ARCHS = load()


def test_the_page_of_models_has_what_this_vllm_has() -> None:
    """tests/torch compares the rest of it, without a vLLM to be asked."""
    assert family_table.PAGE.read_text() == family_table.markdown()


@pytest.mark.parametrize("arch", ARCHS)
def test_every_declared_family_is_proposed_as_declared(arch: str) -> None:
    found, declared = propose(arch, SNAPSHOT).spec, ARCHS[arch]
    assert found is not None
    assert found.arch == arch
    for field in fields(MoE):
        one, other = getattr(found, field.name), getattr(declared, field.name)
        if field.name not in ("arch", "aliases", "needs", "vllm"):
            assert (one == other) if isinstance(one, str) else (sorted(one) == sorted(other)), field.name


@pytest.mark.parametrize(
    "arch", ["BailingMoeV3ForCausalLM", "Cohere2MoeForCausalLM", "InternS1ProForConditionalGeneration"]
)
def test_the_written_file_declares_the_proposal(arch: str, tmp_path: Path) -> None:
    assert cli.main(["models", "new", arch, "--write", str(tmp_path)]) == 0
    [file] = tmp_path.iterdir()
    assert all(len(line) <= 120 for line in file.read_text().splitlines()), "lint demands it of the folder of families"
    scope: dict[str, object] = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    assert scope["MODEL"] == propose(arch, SNAPSHOT).spec


def test_what_cannot_be_declared_says_why_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models", "new", "PhiMoEForCausalLM"]) == 1
    assert capsys.readouterr().err == (
        "afd models: vllm.model_executor.models.phimoe makes norms as nn.LayerNorm, no name of its own, so that the "
        "FFN role would make them too.\n"
    )
    assert cli.main(["models", "new", "Qwen3MoForCausalLM"]) == 2
    assert "found 'Qwen3MoForCausalLM': name one as config.json does, such as Qwen3MoeFor" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (CutError("Expected one thing, found another."), "afd models: Expected one thing, found another.\n"),
        (RuntimeError("much\nno such kernel\nFor further information visit x"), "found 'no such kernel': correct the"),
    ],
)
def test_a_proof_that_fails_is_a_sentence(
    error: Exception, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_spec: MoE, _folder: Path) -> list[str]:
        raise error

    monkeypatch.setattr("afd_models.prove.prove", fail)
    (tmp_path / "config.json").write_text('{"architectures": ["Cohere2MoeForCausalLM"]}')
    assert cli.main(["models", "new", "Cohere2MoeForCausalLM", "--config", str(tmp_path)]) == 1
    found = capsys.readouterr().err
    assert said in found
    assert found.count("\n") == 1


def test_every_architecture_with_experts_is_listed_with_what_comes_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models", "all"]) == 0
    said = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert {arch for arch, state in said.items() if state == "declared"} == set(ARCHS)
    assert said["DbrxForCausalLM"].startswith("not proposed, No attribute of a decoder layer of vllm.")
    assert said["DeepseekV32ForCausalLM"].startswith("refused, ")
    assert said["Cohere2MoeForCausalLM"] == "proposed"
    assert said["Step3TextForCausalLM"].startswith("not proposed, A Step3TextDecoderLayer also makes itself a ")
    assert "vllm.model_executor.models.granitemoe, whose names" in said["GraniteMoeSharedForCausalLM"]
    assert "LlamaForCausalLM" not in said
    assert not {"Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration", "PanguEmbeddedForCausalLM"} & said.keys()


@pytest.mark.parametrize(
    ("arch", "file", "beside"),
    [
        ("Qwen3_5ForCausalLM", "qwen3_5", "Qwen3_5MoeForCausalLM and Qwen3_5MoeForConditionalGeneration"),
        ("PanguEmbeddedForCausalLM", "openpangu", "PanguProMoEV2ForCausalLM and PanguUltraMoEForCausalLM"),
    ],
)
def test_what_is_dense_beside_models_with_experts_is_not_proposed(arch: str, file: str, beside: str) -> None:
    said = f"{arch} has no experts: of vllm.model_executor.models.{file}, {beside} have them."
    assert propose(arch, SNAPSHOT) == Proposal(None, (said,))


@pytest.mark.parametrize("arch", ["Lfm2MoeForCausalLM", "LongcatFlashForCausalLM"])
def test_attention_in_several_places_is_not_proposed(arch: str) -> None:
    assert propose(arch, SNAPSHOT).spec is None


@pytest.mark.usefixtures("distributed")
def test_a_proposal_is_proven_on_a_checkpoint(checkpoint: Callable[[str], Path]) -> None:
    spec = propose("MixtralForCausalLM", SNAPSHOT).spec
    assert spec is not None
    lines = list(prove(spec, checkpoint("mixtral")))
    assert lines[2].endswith("each in its part, loaded with equal values")
    with pytest.raises(CutError, match=r"model\.layers\.0\.self_attn\.attn was built"):
        list(prove(replace(spec, attention=("MixtralForCausalLM",)), checkpoint("mixtral")))
    assert "MoE(" in text(spec)
