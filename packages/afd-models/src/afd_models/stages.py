"""The FFN stages of a built model: where they sit on either role, and the replay of one on the FFN role."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from afd_models.keep import NOTHING, Keep
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


def find_stages(spec: MoE, model: nn.Module, keep: Keep = NOTHING) -> tuple[Stage, ...]:
    """All stages of ``model`` in layer order; the same tuple on both roles of one checkpoint."""
    stages = []
    for layer, path, module in ffns(spec, model):
        sparse = hasattr(module, spec.inner)
        if not isinstance(module, Absent) and (sparse or not keep.dense):
            whole = not sparse or bool(spec.block)
            stages.append(Stage(layer, path if whole else f"{path}.{spec.inner}", sparse, whole))
    return tuple(stages)


def ffns(spec: MoE, model: nn.Module) -> list[tuple[int, str, nn.Module]]:
    """(layer, path, module) of every decoder layer's FFN, remote, native or absent, in layer order."""
    pattern = re.compile(rf"(?:.*\.)?layers\.(\d+)\.{re.escape(spec.ffn)}")
    found = [
        (int(match[1]), path, module)
        for path, module in model.named_modules()
        if (match := pattern.fullmatch(path)) is not None
    ]
    return sorted(found, key=lambda each: each[0])


class Replay:
    """Calls on the FFN role the native module that a stand-in stands for on the attention role."""

    def __init__(self, model: nn.Module, stages: tuple[Stage, ...], keep: Keep = NOTHING) -> None:
        self._gate_here = not keep.gate
        self._modules: Mapping[int, tuple[nn.Module, bool]] = {
            stage.layer: (model.get_submodule(stage.path), stage.whole) for stage in stages
        }

    def __call__(self, layer: int, hidden: torch.Tensor, router: torch.Tensor | None = None) -> torch.Tensor:
        """hidden: [rows, hidden] of any attention ranks; returns the stage's output, alike in shape and dtype.

        router: [rows, experts] where attention has the gate. Must run inside vLLM's forward context. ValueError for a
        layer that this model does not exchange, and for logits that are missing or not expected.
        """
        if layer not in self._modules:
            raise ValueError(
                f"Expected a layer of {sorted(self._modules)}, found {layer}: both roles must serve the same model."
            )
        module, whole = self._modules[layer]
        if (router is None) != (self._gate_here or whole):
            raise ValueError(
                f"Expected layer {layer} {'without' if router is not None else 'with'} router logits, found "
                f"{'some' if router is not None else 'none'}: set compute_gate_on_attention alike on both roles."
            )
        if whole:
            output: torch.Tensor = module(hidden)
            return output
        # The same call as in the native block, whose experts call their gate, if they have one, on these logits.
        result: torch.Tensor = module(hidden_states=hidden, router_logits=hidden if router is None else router)
        return result
