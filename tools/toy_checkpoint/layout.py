"""Writes tensors as published checkpoints have them: one file, or shards with an index of where each tensor is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def save(tensors: Mapping[str, Tensor], folder: Path, shards: int = 1) -> None:
    """Shards hold consecutive tensors of about equally many bytes."""
    from safetensors.torch import save_file

    if shards == 1:
        save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
        return
    total = sum(tensor.nbytes for tensor in tensors.values())
    parts: list[dict[str, Tensor]] = [{} for _ in range(shards)]
    done = 0
    for name, tensor in tensors.items():
        parts[done * shards // total][name] = tensor
        done += tensor.nbytes
    homes = {}
    for number, part in enumerate(parts, 1):
        file = f"model-{number:05}-of-{shards:05}.safetensors"
        save_file(part, folder / file, metadata={"format": "pt"})
        homes |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": total}, "weight_map": homes}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
