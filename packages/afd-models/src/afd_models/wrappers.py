"""The ``AFD<arch>`` model classes: vLLM's own, built inside the cut, registered lazily, chosen by AFD workers only."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from afd_compat.patches.weight_reading import reading_only
from afd_models.cut import cut
from afd_models.families import find, load
from afd_models.keep import NOTHING, Keep
from afd_models.kept import loadable
from afd_models.needed import Needed, local_experts
from afd_models.postconditions import check
from afd_models.stages import find_stages

if TYPE_CHECKING:
    from torch import Tensor, nn
    from vllm.config import ModelConfig, VllmConfig

    from afd_connectors.layout import Role
    from afd_models.exchange import Exchange
    from afd_models.spec import MoE

    Load = Callable[[nn.Module, Iterable[tuple[str, Tensor]]], set[str] | None]

PREFIX = "AFD"


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of a model is being built: a role and, on attention, the exchange of its stand-ins.

    keep: what attention keeps of the FFNs; the same on both roles.
    """

    role: Role
    exchange: Exchange | None = None
    keep: Keep = NOTHING


#: Set while an AFD worker loads its model; vLLM constructs model classes with its own arguments only.
_PART: ContextVar[Part] = ContextVar("afd_part")


@contextmanager
def selected(model_config: ModelConfig, part: Part) -> Iterator[MoE]:
    """While active, vLLM's loader builds ``AFD<arch>`` for this model config instead of its own class.

    Yields the family's declaration; ValueError when the model is of no declared family.
    """
    from vllm.model_executor.models import ModelRegistry

    hf_config = model_config.hf_config
    native = list(hf_config.architectures)
    arch, spec = find(native)
    alias = f"{PREFIX}{arch}"
    ModelRegistry.register_model(alias, f"{__name__}:{alias}")
    hf_config.architectures = [alias]
    token = _PART.set(part)
    try:
        yield spec
    finally:
        _PART.reset(token)
        hf_config.architectures = native


def _wrap(arch: str, spec: MoE) -> type[nn.Module]:
    native: type[nn.Module] = getattr(importlib.import_module(spec.module), arch)
    load_native: Load = getattr(importlib.import_module(spec.module), arch).load_weights

    def build(self: nn.Module, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        part = _PART.get()
        with cut(spec, part.role, part.exchange, part.keep):
            native.__init__(self, vllm_config=vllm_config, prefix=prefix)
        layers = vllm_config.model_config.hf_text_config.num_hidden_layers
        check(spec, part.role, self, find_stages(spec, self, part.keep), layers, part.keep)

    def load_weights(self: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> set[str] | None:
        # vLLM's loader hands in a generator that opens no file before it is asked for the first tensor.
        with reading_only(Needed(self), local_experts(self)):
            loaded: set[str] | None = load_native(self, loadable(self, weights))
        return loaded

    body = {"__init__": build, "load_weights": load_weights, "__module__": __name__}
    return type(f"{PREFIX}{arch}", (native,), body)


def __getattr__(name: str) -> type[nn.Module]:
    """``AFD<arch>`` of every declared family, made on first use."""
    arch = name.removeprefix(PREFIX)
    family = load().get(arch)
    if arch == name or family is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    wrapped = globals()[name] = _wrap(arch, family)
    return wrapped
