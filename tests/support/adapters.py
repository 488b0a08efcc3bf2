"""LoRA adapters in the published layout, and checkpoints that hold an adapter's sum with what it adapts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

RANK = 8
ALPHA = 16
_PREFIX = "base_model.model."


def write(folder: Path, model: Path, layers: Sequence[str]) -> Path:
    """An adapter of random weights for ``layers`` of a checkpoint, e.g. ``model.layers.0.self_attn.q_proj``."""
    import torch
    from safetensors.torch import load_file, save_file

    weights, generator = load_file(model / "model.safetensors"), torch.Generator().manual_seed(5)
    tensors = {}
    for layer in layers:
        rows, columns = weights[f"{layer}.weight"].shape
        for side, shape in (("A", (RANK, columns)), ("B", (rows, RANK))):
            tensors[f"{_PREFIX}{layer}.lora_{side}.weight"] = torch.randn(shape, generator=generator) * 0.1
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    targets = sorted({layer.rpartition(".")[2] for layer in layers})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA, "bias": "none",
              "target_modules": targets, "base_model_name_or_path": "toy"}  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def merged(folder: Path, model: Path, adapter: Path) -> Path:
    """The checkpoint in float32 with the adapter added to its weights."""
    import torch
    from safetensors.torch import load_file, save_file

    weights = {name: tensor.to(torch.float32) for name, tensor in load_file(model / "model.safetensors").items()}
    _add(weights, load_file(adapter / "adapter_model.safetensors"))
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _add(weights: dict[str, Tensor], adapter: Mapping[str, Tensor]) -> None:
    for name, down in adapter.items():
        if name.endswith("lora_A.weight"):
            layer = name.removeprefix(_PREFIX).removesuffix(".lora_A.weight")
            up = adapter[name.replace("lora_A", "lora_B")]
            weights[f"{layer}.weight"] += ALPHA / RANK * (up @ down)
