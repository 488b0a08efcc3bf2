"""Writes a trained demo model in the layout of published DeepSeek-V2 checkpoints."""

import hashlib
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

WEIGHTS = "model.safetensors"


def _unpacked(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give every expert its own three matrices: transformers trains them stacked, checkpoints do not."""
    out: dict[str, Tensor] = {}
    for name, value in state.items():
        stem, _, kind = name.rpartition(".")
        if kind == "gate_up_proj":
            for number, expert in enumerate(value):
                gate, up = expert.chunk(2)
                out[f"{stem}.{number}.gate_proj.weight"] = gate
                out[f"{stem}.{number}.up_proj.weight"] = up
        elif kind == "down_proj":
            for number, expert in enumerate(value):
                out[f"{stem}.{number}.down_proj.weight"] = expert
        else:
            out[name] = value
    return out


def write_weights(state: dict[str, Tensor], folder: Path) -> str:
    """Write `state` as bfloat16 into `folder`; returns the file's SHA-256 in hex."""
    tensors = {name: value.to(torch.bfloat16).contiguous() for name, value in _unpacked(state).items()}
    content = save({name: value.clone() for name, value in tensors.items()}, metadata={"format": "pt"})
    (folder / WEIGHTS).write_bytes(content)
    return hashlib.sha256(content).hexdigest()
