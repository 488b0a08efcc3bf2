"""The FFN stages of a built model: where they sit on either role, and the replay of one on the FFN role."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from afd_models.standins import Absent

if TYPE_CHECKING:
    import torch
    from torch import nn

    from afd_models.spec import MoE


@dataclass(frozen=True, slots=True)
class Stage:
    """One exchange per step: the FFN of decoder layer ``layer``; ``path`` is the module that both roles mean.

    sparse: whether it has experts. whole: whether the whole FFN is exchanged, or what ``path`` names inside it.
    """

    layer: int
    path: str
    sparse: bool
    whole: bool = False


def find_stages(spec: MoE, model: nn.Module) -> tuple[Stage, ...]:
    """All stages of ``model`` in layer order; the same tuple on both roles of one checkpoint."""
    pattern = re.compile(rf"(?:.*\.)?layers\.(\d+)\.{re.escape(spec.ffn)}")
    stages = []
    for path, module in model.named_modules():
        match = pattern.fullmatch(path)
        if match is not None and not isinstance(module, Absent):
            sparse = hasattr(module, spec.inner)
            whole = not sparse or bool(spec.block)
            stages.append(Stage(int(match[1]), path if whole else f"{path}.{spec.inner}", sparse, whole))
    return tuple(sorted(stages, key=lambda stage: stage.layer))


class Replay:
    """Calls on the FFN role the native module that a stand-in stands for on the attention role."""

    def __init__(self, model: nn.Module, stages: tuple[Stage, ...]) -> None:
        self._modules: Mapping[int, tuple[nn.Module, bool]] = {
            stage.layer: (model.get_submodule(stage.path), stage.whole) for stage in stages
        }

    def __call__(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        """hidden: [rows, hidden] of any attention ranks; returns the stage's output, alike in shape and dtype.

        Must run inside vLLM's forward context. ValueError for a layer that this model does not exchange.
        """
        if layer not in self._modules:
            raise ValueError(
                f"Expected a layer of {sorted(self._modules)}, found {layer}: both roles must serve the same model."
            )
        module, whole = self._modules[layer]
        if whole:
            output: torch.Tensor = module(hidden)
            return output
        # The same call as in the native block: hidden states as router logits, the gate follows the experts.
        result: torch.Tensor = module(hidden_states=hidden, router_logits=hidden)
        return result
