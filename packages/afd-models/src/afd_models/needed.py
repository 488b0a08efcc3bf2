"""Which tensors of a checkpoint a role's part of a model can hold, so that the others need not be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch import nn

from afd_models.standins import StandIn

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Mapper(Protocol):
    def apply_list(self, values: list[str]) -> list[str]: ...


class Needed:
    """Answers for names as the checkpoint has them, from where the built model has stand-ins.

    A name is not needed when it lies below a stand-in, which vLLM's loaders skip anyway, or in a decoder layer that the
    model does not have, such as one for speculation. Whatever is not surely one of these is needed.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = dict(model.named_modules(remove_duplicate=False))
        self._mapper: _Mapper | None = getattr(model, "hf_to_vllm_mapper", None)
        # Such sources have prefixes of their own, which the loader adds after names were asked for.
        self._others = bool(getattr(model, "secondary_weights", ()))

    def __call__(self, name: str) -> bool:
        """Whether the tensor ``name`` must be read."""
        return self._others or any(self._holds(path) for path in self._paths(name))

    def _paths(self, name: str) -> Iterator[str]:
        """The names in the model that the checkpoint's may mean; the mapper's, where the model has one."""
        mapped = [] if self._mapper is None else self._mapper.apply_list([name])
        yield from mapped or [name]

    def _holds(self, name: str) -> bool:
        path, _, rest = name.rpartition(".")
        while path:
            module = self._modules.get(path)
            if isinstance(module, StandIn):
                return next(module.parameters(), None) is not None
            if module is not None:
                return not (isinstance(module, nn.ModuleList) and rest.partition(".")[0].isdigit())
            path, _, last = path.rpartition(".")
            rest = f"{last}.{rest}"
        return True


def local_experts(model: nn.Module) -> frozenset[int] | None:
    """Numbers of the experts that this rank of an expert-parallel group holds, by vLLM's own map; None for all."""
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

    maps = (module.expert_map for module in model.modules() if isinstance(module, RoutedExperts))
    found = next((each for each in maps if each is not None), None)  # all layers have one map
    if found is None:
        return None
    return frozenset(expert for expert, place in enumerate(found.tolist()) if place >= 0)
