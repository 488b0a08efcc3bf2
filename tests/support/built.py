"""Models as vLLM's own loader builds them in this process: whole, or one role's part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
from torch import nn
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import base_loader, get_model

from afd_models.stages import Stage, find_stages
from afd_models.wrappers import Part, selected
from tools.toy_checkpoint import needs_trust


@dataclass(frozen=True, slots=True)
class Built:
    """A model with the config that it was built with and, for a part, its stages.

    loaded: parameters as the checkpoint was loaded into them. After that vLLM's kernels for some processors keep
    weights in a layout of their own and leave an empty parameter behind, which ones differs by processor.
    """

    model: nn.Module
    config: VllmConfig
    loaded: Mapping[str, torch.Tensor]
    stages: tuple[Stage, ...] = ()

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """All that are there; those that are empty as they were loaded."""
        present = self.model.named_parameters()
        return {name: each if each.numel() else self.loaded.get(name, each) for name, each in present}

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.parameters.values())

    @property
    def numel(self) -> int:
        return sum(each.numel() for each in self.parameters.values())


def build(folder: Path, part: Part | None = None, **options: object) -> Built:
    """The whole model without a part. options: of the engine, beside the few that every test gives."""
    given = {"enforce_eager": True, "max_model_len": 256, "dtype": "bfloat16", **options}
    given.setdefault("trust_remote_code", needs_trust(folder))
    config = EngineArgs(model=str(folder), **given).create_engine_config()  # type: ignore[arg-type]
    with set_current_vllm_config(config), _recorded() as loaded:
        if part is None:
            return Built(get_model(vllm_config=config), config, loaded)
        with selected(config.model_config, part) as spec:
            model = get_model(vllm_config=config)
    return Built(model, config, loaded, find_stages(spec, model, part.keep))


@contextmanager
def _recorded() -> Iterator[Mapping[str, torch.Tensor]]:
    native = base_loader.process_weights_after_loading
    loaded: dict[str, torch.Tensor] = {}

    def process(model: nn.Module, *given: object) -> None:
        loaded.update({name: each.detach() for name, each in model.named_parameters()})
        native(model, *given)

    with mock.patch.object(base_loader, "process_weights_after_loading", process):
        yield loaded
    assert loaded, "vLLM's loader did not process what it had loaded: look for where it does now"
