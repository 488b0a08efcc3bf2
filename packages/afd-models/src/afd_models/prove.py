"""Cuts a small checkpoint with a declaration that is registered nowhere, and checks both parts as the tests do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch

from afd_models.cut import cut
from afd_models.exchange import Exchange
from afd_models.postconditions import CutError, check
from afd_models.stages import find_stages

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn
    from vllm.config import VllmConfig

    from afd_connectors.layout import Role
    from afd_models.spec import MoE


def prove(spec: MoE, folder: Path) -> Iterator[str]:
    """Yields what was found true, a line each; CutError or ValueError with what is not.

    Builds the whole model and both parts in this process, one after the other, from the checkpoint's weights.
    """
    with _groups():
        whole = dict(_built(folder, nullcontext()).named_parameters())
        parts = {role: _part(spec, role, folder) for role in ("attention", "ffn")}
    held = {role: dict(model.named_parameters()) for role, model in parts.items()}
    yield from (f"{role}: {sum(p.numel() for p in own.values())} parameters" for role, own in held.items())
    attention, ffn = held["attention"], held["ffn"]
    neither = sorted(set(whole) - set(attention) - set(ffn))
    both = sorted(n for n in set(attention) & set(ffn) if not spec.overlaps(n))
    differ = sorted(n for own in (attention, ffn) for n, value in own.items() if not _same(value, whole.get(n)))
    for names, wrong in ((neither, "in neither part"), (both, "in both parts"), (differ, "unlike the whole model's")):
        if names:
            raise CutError(f"Expected each parameter in its part and loaded alike, found {wrong}: {', '.join(names)}.")
    yield f"whole: {sum(p.numel() for p in whole.values())} parameters, each in its part, loaded with equal values"
    stages = [find_stages(spec, model) for model in parts.values()]
    if stages[0] != stages[1]:
        raise CutError(f"Expected the same stages on both roles, found {stages[0]} and {stages[1]}.")
    yield f"stages: {', '.join(stage.path for stage in stages[0])}"


def _part(spec: MoE, role: Role, folder: Path) -> nn.Module:
    model = _built(folder, cut(spec, role, Exchange() if role == "attention" else None))
    layers = _config(folder).model_config.hf_text_config.num_hidden_layers
    check(spec, role, model, find_stages(spec, model), layers)
    return model


def _built(folder: Path, around: AbstractContextManager[None]) -> nn.Module:
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader import get_model

    config = _config(folder)
    with set_current_vllm_config(config), around:
        model: nn.Module = get_model(vllm_config=config)
    return model


def _config(folder: Path) -> VllmConfig:
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(model=str(folder), enforce_eager=True, max_model_len=256).create_engine_config()


def _same(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    return other is not None and torch.equal(one, other)


@contextmanager
def _groups() -> Iterator[None]:
    """vLLM's process groups of one rank, which its layers ask for, unless this process has them."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed.parallel_state import (
        cleanup_dist_env_and_memory,
        ensure_model_parallel_initialized,
        init_distributed_environment,
    )
    from vllm.utils.network_utils import get_open_port

    if torch.distributed.is_initialized():
        yield
        return
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"tcp://127.0.0.1:{get_open_port()}", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
    try:
        yield
    finally:
        cleanup_dist_env_and_memory()
