"""The experts' factory where attention keeps part of the FFN: what is taken from its arguments on either role."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from torch import Tensor

    from afd_models.keep import Keep

#: Attribute of a module that lost its parameters to the other role: their names.
_STRIPPED = "afd_stripped"


@dataclass(frozen=True, slots=True)
class Kept:
    """What attention computes of one layer besides the exchange. gate: [rows, hidden] -> ([rows, experts], bias)."""

    gate: Callable[[Tensor], tuple[Tensor, object]] | None = None


NONE = Kept()


def kept(keep: Keep, prefix: str, arguments: Mapping[str, object]) -> Kept:
    """Of the experts at ``prefix``, from the arguments of their factory; ValueError for what they do not allow."""
    gate = _gate(prefix, arguments) if keep.gate else None
    return Kept(gate)


def without(keep: Keep, factory: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """The factory on the FFN role: what attention keeps is neither handed in nor held."""

    def build(*given: object, **arguments: object) -> nn.Module:
        mine = kept(keep, str(arguments.get("prefix", "experts")), arguments)
        if isinstance(mine.gate, nn.Module):
            _strip(mine.gate, arguments.values())
            arguments["gate"] = None
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
    changed = next((name for name in ("routed_input_transform", "shared_expert_gate") if arguments.get(name)), None)
    if not isinstance(gate, nn.Module) or changed is not None:
        found = "none" if changed is None else f"one that vLLM combines with a {changed}"
        raise ValueError(
            f"compute_gate_on_attention needs a model that hands its experts a gate of their own, found {found} at "
            f"{prefix}: set it to false for this model."
        )
    return gate


def _strip(gate: nn.Module, used: Iterable[object]) -> None:
    """Takes away the gate's parameters but those that the experts use themselves, such as a bias of their choice."""
    keeping = {id(each) for each in used}
    names = frozenset(name for name, value in gate.named_parameters() if id(value) not in keeping)
    for name in names:
        delattr(gate, name)
    setattr(gate, _STRIPPED, names)
    gate.quant_method = None  # type: ignore[assignment]  # vLLM would process the weights that are gone
