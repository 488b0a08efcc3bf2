"""Bytes that native vLLM and each role read of one sharded toy checkpoint, and bytes of parameters that they hold.

python -m tools.bench_load [FAMILY] [--shards N] [--layers N] [--hidden N] [--ranks N]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from tools import reads, toy_checkpoint
from tools.options import positive
from tools.rank_of import rank_of


@dataclass(frozen=True, slots=True)
class Part:
    """What one process loads. ranks: of an expert-parallel group, of which this is ``rank``; 0 where there is none."""

    name: str
    role: str = ""
    ranks: int = 0
    rank: int = 0


def parts(ranks: int) -> Iterator[Part]:
    """The whole model, each role, and each of ``ranks`` FFN processes that share the experts."""
    yield from (Part("whole"), Part("attention", "attention"), Part("ffn", "ffn"))
    if ranks > 1:
        yield from (Part(f"ffn, EP rank {rank} of {ranks}", "ffn", ranks, rank) for rank in range(ranks))


def main() -> None:
    """Prints one line per part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", nargs="?", default="qwen3-moe", choices=sorted(toy_checkpoint.FAMILIES))
    parser.add_argument("--shards", type=positive, default=48)
    parser.add_argument("--layers", type=positive, default=4)
    parser.add_argument("--hidden", type=positive, default=1024)
    parser.add_argument("--ranks", type=positive, default=2, help="FFN processes that share the experts")
    options = parser.parse_args()
    sizes = {"hidden_size": options.hidden, "moe_intermediate_size": options.hidden // 2}
    with tempfile.TemporaryDirectory() as made:
        folder = toy_checkpoint.make(
            options.family, Path(made), layers=options.layers, shards=options.shards, changes=sizes
        )
        _table(options.family, folder, options.ranks)


def _table(family: str, folder: Path, ranks: int) -> None:
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    total, count = index["metadata"]["total_size"], len(set(index["weight_map"].values()))
    print(f"{family}: {total:,} bytes of tensors in {count} files")
    print(f"{'part':<20}{'files':>6}{'tensors':>9}{'bytes of tensors':>18}{'bytes from disk':>17}{'held':>13}")
    _groups()
    for part in parts(ranks):
        files = sorted(folder.glob("*.safetensors"))
        reads.forget(files)
        with reads.recorded() as found:
            held = _load(folder, part)
        size = sum(found.tensors.values())
        print(
            f"{part.name:<20}{len(found.files):>6}{len(found.tensors):>9}{size:>18,}{reads.resident(files):>17,}{held:>13,}"
        )


def _groups() -> None:
    """vLLM's process groups for one rank."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed.parallel_state import ensure_model_parallel_initialized, init_distributed_environment
    from vllm.platforms import current_platform
    from vllm.utils.network_utils import get_open_port

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"tcp://127.0.0.1:{get_open_port()}", 0, current_platform.dist_backend)
        ensure_model_parallel_initialized(1, 1)


def _load(folder: Path, part: Part) -> int:
    """Bytes of the parameters that the part then holds."""
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader import get_model

    from afd_models import wrappers
    from afd_models.exchange import Exchange

    options: dict[str, object] = {"trust_remote_code": toy_checkpoint.needs_trust(folder)}
    if part.ranks:
        options |= {"tensor_parallel_size": part.ranks, "enable_expert_parallel": True}
    config = EngineArgs(
        model=str(folder), enforce_eager=True, max_model_len=256, dtype="bfloat16", **options
    ).create_engine_config()
    with set_current_vllm_config(config), rank_of(part.ranks, part.rank) if part.ranks else nullcontext():
        chosen = wrappers.Part("attention", Exchange()) if part.role == "attention" else wrappers.Part("ffn")
        with wrappers.selected(config.model_config, chosen) if part.role else nullcontext():
            model = get_model(vllm_config=config)
    return sum(each.nbytes for each in model.parameters())


if __name__ == "__main__":
    main()
