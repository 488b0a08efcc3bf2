"""What a role does not let change while it serves: its weights, and which layers an adapter may add to."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn
    from vllm.lora.worker_manager import WorkerLoRAManager

log = logging.getLogger("afd.workers")


class FixedWeights:
    """Mixed into both roles in front of vLLM's worker: every way to change weights is refused, and nothing is lost."""

    def reload_weights(self, *_args: object, **_kwargs: object) -> None:
        """ValueError; vLLM would read one role's part of another checkpoint."""
        raise _refused("reload_weights")

    def init_weight_transfer_engine(self, *_args: object, **_kwargs: object) -> None:
        """ValueError."""
        raise _refused("init_weight_transfer_engine")

    def start_weight_update(self, *_args: object, **_kwargs: object) -> None:
        """ValueError."""
        raise _refused("start_weight_update")

    def start_draft_weight_update(self, *_args: object, **_kwargs: object) -> None:
        """ValueError."""
        raise _refused("start_draft_weight_update")

    def update_weights(self, *_args: object, **_kwargs: object) -> None:
        """ValueError."""
        raise _refused("update_weights")

    def finish_weight_update(self, *_args: object, **_kwargs: object) -> None:
        """ValueError."""
        raise _refused("finish_weight_update")


def _refused(call: str) -> ValueError:
    return ValueError(
        f"Expected the weights to stay while AFD serves, found {call}: the other role would go on with the old ones, "
        "so restart both roles with the new checkpoint."
    )


def only_attention(manager: WorkerLoRAManager, model: nn.Module, roots: Iterable[str]) -> None:
    """From now on vLLM refuses by name an adapter for a layer of the FFN part, which it would load and never call.

    roots: dotted names of the FFNs in ``model``, e.g. ``model.layers.1.mlp``.
    """
    inside = tuple(f"{root}." for root in roots)
    foreign = {path.rpartition(".")[2] for path, _ in model.named_modules() if path.startswith(inside)}
    layers = manager._adapter_manager
    layers.supported_lora_modules = sorted(set(layers.supported_lora_modules) - foreign)
    log.info("AFD takes LoRA adapters for %s.", ", ".join(layers.supported_lora_modules))
