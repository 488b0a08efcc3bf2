"""The digest by which roles tell checkpoints apart, and the lookup of families."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from afd_models import families
from afd_models.digest import model_digest

CONFIG: dict[str, object] = {"hidden_size": 8, "_name_or_path": "here", "architectures": ["A"]}


def checkpoint(folder: Path, body: bytes, header: bytes = b"{}") -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + body)
    return folder


def test_equal_checkpoints_have_equal_digests_wherever_they_lie(tmp_path: Path) -> None:
    one, two = checkpoint(tmp_path / "a", b"x" * 100), checkpoint(tmp_path / "b", b"x" * 100)
    moved = {**CONFIG, "_name_or_path": "there", "architectures": ["AFDA"]}
    assert model_digest(CONFIG, one) == model_digest(moved, two)
    assert len(model_digest(CONFIG, one)) == 16


@pytest.mark.parametrize(("body", "header"), [(b"y" * 100, b"{}"), (b"x" * 101, b"{}"), (b"x" * 100, b"[]")])
def test_weights_headers_and_sizes_count(tmp_path: Path, body: bytes, header: bytes) -> None:
    one, two = checkpoint(tmp_path / "a", b"x" * 100), checkpoint(tmp_path / "b", body, header)
    assert model_digest(CONFIG, one) != model_digest(CONFIG, two)


def test_a_changed_config_counts_and_no_folder_is_fine(tmp_path: Path) -> None:
    assert model_digest(CONFIG, None) != model_digest({**CONFIG, "hidden_size": 9}, None)
    assert model_digest(CONFIG, None) == model_digest(CONFIG, tmp_path)


def test_a_file_that_is_no_safetensors_is_digested_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 7)
    assert model_digest(CONFIG, tmp_path) != model_digest(CONFIG, None)


def test_no_more_is_read_of_a_header_than_the_format_allows(tmp_path: Path) -> None:
    with (tmp_path / "model.safetensors").open("wb") as stream:
        stream.write((1 << 62).to_bytes(8, "little"))
        stream.truncate(1 << 33)
    tracemalloc.start()
    try:
        assert len(model_digest(CONFIG, tmp_path)) == 16
        assert tracemalloc.get_traced_memory()[1] < 150_000_000
    finally:
        tracemalloc.stop()


def test_v2_and_v3_share_one_declaration() -> None:
    assert families.find(["Other", "DeepseekV3ForCausalLM"])[1] is families.find(["DeepseekV2ForCausalLM"])[1]


def test_an_unknown_architecture_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"^Expected a model of a declared family \(.*Qwen3MoeForCausalLM.*\), found LlamaF"
    ):
        families.find(["LlamaForCausalLM"])
    with pytest.raises(ValueError, match="found none"):
        families.find([])
