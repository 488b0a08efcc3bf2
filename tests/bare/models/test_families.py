"""Which models are carried, which are refused and in what words, and where a declaration's names are looked up."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from afd_models import checkpoint
from afd_models.families import find, load, refused
from afd_models.names import Names

HARD = ("GptOssForCausalLM", "Llama4ForCausalLM", "Qwen3NextForCausalLM")


@pytest.mark.parametrize("arch", HARD)
def test_a_declared_family_is_found_by_its_name(arch: str) -> None:
    assert find(["Other", arch]) == (arch, load()[arch])


def test_what_is_refused_is_not_declared_too() -> None:
    assert not set(load()) & set(refused())


@pytest.mark.parametrize("arch", sorted(refused()))
def test_each_refusal_is_one_sentence_with_a_reason_and_what_to_do(arch: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^AFD does not carry {arch} \(vllm\.[\w.]+\): \w[^.;]+; serve [^.;]+\.$"
    ) as said:
        find([arch])
    words = str(said.value)
    for text_model in re.findall(r"\w+ForCausalLM", words.split(";")[1]):
        assert text_model not in refused(), words


def test_a_wrapper_that_nobody_has_looked_at_is_told_apart_from_its_text_model() -> None:
    with pytest.raises(ValueError, match=r"found NewMoeForConditionalGeneration, which wraps a text model and is not"):
        find(["NewMoeForConditionalGeneration"])
    with pytest.raises(ValueError, match=r"found LlamaForCausalLM: serve one of these"):
        find(["LlamaForCausalLM"])


def test_a_checkpoint_is_refused_by_its_config_alone(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"architectures": ["DeepseekV32ForCausalLM"]}))
    with pytest.raises(ValueError, match=r"^AFD does not carry DeepseekV32ForCausalLM"):
        checkpoint.refuse(str(tmp_path))
    for text in (json.dumps({"architectures": [HARD[0]]}), "{}", "[]", "no json", json.dumps({"architectures": 1})):
        config.write_text(text)
        checkpoint.refuse(str(tmp_path))
    for name in ("someone/model-to-download", "~nouser/x", "m" * 300):
        checkpoint.refuse(name)


def test_a_config_is_read_whole_only_if_it_is_a_file_of_a_configs_size(tmp_path: Path) -> None:
    large, pipe = tmp_path / "large" / "config.json", tmp_path / "pipe" / "config.json"
    for file in (large, pipe):
        file.parent.mkdir()
    with large.open("wb") as stream:
        stream.truncate(1 << 40)
    os.mkfifo(pipe)
    for file, sentence in ((large, r"1,099,511,627,776 bytes, more than 64 MiB"), (pipe, "not a regular file")):
        checkpoint.refuse(str(file.parent))  # vLLM's to judge
        with pytest.raises(ValueError, match=rf"^Expected a JSON object in .*, found none \({sentence}\): put [^\n]*$"):
            checkpoint.check(str(file.parent))
    for name in ("someone/model-to-download", "~nouser/x", "m" * 300):
        checkpoint.check(name)


def test_a_family_whose_file_imports_what_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arch = "Qwen3_5MoeForCausalLM"
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [arch]}))
    monkeypatch.setattr(checkpoint, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=rf"^Expected torchvision to be installed, which vLLM imports with {arch} \("):
        checkpoint.refuse(str(tmp_path))
    monkeypatch.setattr(checkpoint, "find_spec", lambda name: object())
    checkpoint.refuse(str(tmp_path))


def test_names_are_found_in_every_module_and_in_class_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    class Layer:
        attention_class = int

    first, second = ModuleType("toy_first"), ModuleType("toy_second")
    vars(first).update(Layer=Layer, Norm=str)
    vars(second).update(Norm=bytes)
    for module in (first, second):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    names = Names(("toy_first", "toy_second"))
    assert names.places("Norm") == ((first, "Norm"), (second, "Norm"))
    assert names.native("Norm") is str
    assert names.places("Layer.attention_class") == ((Layer, "attention_class"),)
    assert names.places("Layer.gone") == names.places("Gone") == names.places("Gone.attribute") == ()
