"""Models as vLLM's own loader builds them in this process: whole, or one role's part."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model

from afd_models.stages import Stage, find_stages
from afd_models.wrappers import Part, selected
from tools.toy_checkpoint import needs_trust


@dataclass(frozen=True, slots=True)
class Built:
    """A model with the config that it was built with and, for a part, its stages."""

    model: nn.Module
    config: VllmConfig
    stages: tuple[Stage, ...] = ()

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        return dict(self.model.named_parameters())


def build(folder: Path, part: Part | None = None, **options: object) -> Built:
    """The whole model without a part. options: of the engine, beside the few that every test gives."""
    given = {"enforce_eager": True, "max_model_len": 256, "dtype": "bfloat16", **options}
    given.setdefault("trust_remote_code", needs_trust(folder))
    config = EngineArgs(model=str(folder), **given).create_engine_config()  # type: ignore[arg-type]
    with set_current_vllm_config(config):
        if part is None:
            return Built(get_model(vllm_config=config), config)
        with selected(config.model_config, part) as spec:
            model = get_model(vllm_config=config)
    return Built(model, config, find_stages(spec, model, part.keep))
