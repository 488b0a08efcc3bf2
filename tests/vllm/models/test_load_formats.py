"""Both roles load their parts by each of vLLM's load formats that keep a checkpoint's names, and without weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from afd_models.exchange import Exchange
from afd_models.wrappers import Part
from tests.support.built import build
from tests.support.checkpoints import Checkpoint

pytestmark = pytest.mark.usefixtures("distributed")
#: Load format, further options, and the file that holds the weights.
FORMATS = [
    ("dummy", {}, None),
    ("safetensors", {"safetensors_load_strategy": "eager"}, "model.safetensors"),
    ("auto", {"model_loader_extra_config": {"enable_multithread_load": True}}, "model.safetensors"),
    ("hf", {}, "pytorch_model.bin"),
    ("pt", {}, "model.pt"),
]


@pytest.mark.parametrize(("name", "options", "file"), FORMATS, ids=[f"{name}-{file}" for name, _, file in FORMATS])
def test_each_format_gives_both_roles_the_whole_models_values(
    name: str, options: dict[str, object], file: str | None, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    source = checkpoint("deepseek-v3")
    for each in source.glob("*.json"):
        (tmp_path / each.name).write_bytes(each.read_bytes())
    if file is not None and file.endswith(".safetensors"):
        (tmp_path / file).symlink_to(source / file)
    elif file is not None:
        torch.save(load_file(source / "model.safetensors"), tmp_path / file)
    options = {**options, "load_format": name}
    whole = build(tmp_path, **options).parameters
    for part in (Part("attention", Exchange()), Part("ffn")):
        held = build(tmp_path, part, **options).parameters
        assert held
        for path, value in held.items():
            assert torch.equal(value, whole[path]), path
            assert value.float().isfinite().all(), path
