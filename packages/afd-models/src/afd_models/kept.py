"""The experts' factory where attention keeps part of the FFN: what is taken from its arguments on either role."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor

    from afd_models.keep import Keep

#: Attribute of a module that lost its parameters to the other role: their names.
_STRIPPED = "afd_stripped"


@dataclass(frozen=True, slots=True)
class Kept:
    """What attention computes of one layer besides the exchange.

    gate: [rows, hidden] -> ([rows, experts], bias). shared: [rows, hidden] -> what is added to the answer, alike.
    """

    gate: Callable[[Tensor], tuple[Tensor, object]] | None = None
    shared: Callable[[Tensor], Tensor] | None = None


NONE = Kept()


def kept(keep: Keep, prefix: str, arguments: Mapping[str, object]) -> Kept:
    """Of the experts at ``prefix``, from the arguments of their factory; ValueError for what they do not allow."""
    gate = _gate(prefix, arguments) if keep.gate else None
    shared = _shared(prefix, arguments) if keep.shared else None
    return Kept(gate, shared)


def without(keep: Keep, factory: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """The factory on the FFN role: what attention keeps is neither handed in nor held."""

    def build(*given: object, **arguments: object) -> nn.Module:
        mine = kept(keep, str(arguments.get("prefix", "experts")), arguments)
        if isinstance(mine.gate, nn.Module):
            _strip(mine.gate, arguments.values())
            arguments["gate"] = None
        if mine.shared is not None:
            arguments["shared_experts"] = None
        return factory(*given, **arguments)

    return build


def loadable(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Of a checkpoint's tensors those that ``model`` has not lost to the other role."""
    lost = {
        f"{path}.{name}" for path, module in model.named_modules() for name in getattr(module, _STRIPPED, frozenset())
    }
    return ((name, tensor) for name, tensor in weights if name not in lost)


def _gate(prefix: str, arguments: Mapping[str, object]) -> nn.Module:
    gate = arguments.get("gate")
    others = ("routed_input_transform", "shared_expert_gate")
    changed = next((name for name in others if arguments.get(name) is not None), None)
    if not isinstance(gate, nn.Module) or changed is not None:
        found = "none" if changed is None else f"one that vLLM combines with a {changed}"
        raise ValueError(
            f"compute_gate_on_attention needs a model that hands its experts a gate of their own, found {found} at "
            f"{prefix}: set it to false for this model."
        )
    return gate


def _shared(prefix: str, arguments: Mapping[str, object]) -> nn.Module:
    """Those that vLLM adds to what the other experts answer, with nothing done to either in between."""
    shared = arguments.get("shared_experts")
    scaled = arguments.get("apply_routed_scale_to_output") and arguments.get("routed_scaling_factor", 1.0) != 1.0
    if not isinstance(shared, nn.Module):
        found = "none"
    elif torch.get_default_dtype() is torch.float16 and scaled:
        found = "some that vLLM scales in float16"
    elif arguments.get("zero_expert_type"):
        found = "some beside zero experts"
    else:
        return shared
    raise ValueError(
        f"shared_experts_on_attention needs a model whose shared experts are added as they are, found {found} at "
        f"{prefix}: set it to false for this model."
    )


def _strip(gate: nn.Module, used: Iterable[object]) -> None:
    """Takes away the gate's parameters but those that the experts use themselves, such as a bias of their choice."""
    keeping = {id(each) for each in used}
    names = frozenset(name for name, value in gate.named_parameters() if id(value) not in keeping)
    for name in names:
        path, _, own = name.rpartition(".")
        owner = gate.get_submodule(path)
        delattr(owner, own)
        owner.quant_method = None  # type: ignore[assignment]  # vLLM would process the weights that are gone
    setattr(gate, _STRIPPED, names)
