"""Writes small random MoE checkpoints in the published format, for tests and benchmarks on a CPU.

Weights are drawn with a large standard deviation (0.1), so that greedy decoding does not collapse into one token and
any wrong row shows in the output.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from tools.toy_checkpoint.families import load
from tools.toy_checkpoint.layout import save
from tools.toy_checkpoint.quantized import configuration, quantise

STD = 0.1
FAMILIES = load()


def runnable() -> list[str]:
    """The families that native vLLM runs on a CPU with what is installed here."""
    return sorted(name for name, toy in FAMILIES.items() if not toy.not_on_cpu and find_spec(toy.needs))


def needs_trust(folder: Path) -> bool:
    """Whether vLLM serves the checkpoint in ``folder`` only with ``trust_remote_code``, as it has code of its own."""
    return "auto_map" in json.loads((folder / "config.json").read_text())


def make(
    family: str,
    folder: Path,
    *,
    seed: int = 0,
    layers: int = 4,
    changes: Mapping[str, object] | None = None,
    shards: int = 1,
    method: str | None = None,
    experts: bool = True,
) -> Path:
    """Writes config.json, the tensors and a byte-level tokenizer into ``folder`` and returns it.

    changes: keys of config.json that differ from the family's small defaults. shards: how many files hold the tensors;
    more than one have an index. method: one of ``quantized.METHODS`` or ``JOINED``, by which projections are stored;
    experts: those of FFNs too.
    """
    import torch

    toy = FAMILIES[family]
    config = {**toy.config, "num_hidden_layers": layers, **(changes or {})}
    if method is not None:
        config["quantization_config"] = configuration(method, experts=experts)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in toy.shapes(config):
        if name.endswith("norm.weight"):
            tensors[name] = torch.ones(shape, dtype=torch.bfloat16)
        elif name.endswith("e_score_correction_bias"):
            tensors[name] = torch.randn(shape, generator=generator) * STD
        else:
            tensors[name] = (torch.randn(shape, generator=generator) * STD).to(torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    save(tensors if method is None else quantise(tensors, method, experts=experts), folder, shards)
    for name, text in toy.files.items():
        (folder / name).write_text(text)
    model = files("afd_workers") / "demo" / "model"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(str(model / name), folder / name)
    return folder
