"""Cuts a model by role: rebinds the names its own constructors look up, only while it is built."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from afd_models import kept
from afd_models.keep import NOTHING, Keep
from afd_models.standins import Absent, RemoteExperts, RemoteFFNProxy, StandIn, standing_for

if TYPE_CHECKING:
    from types import ModuleType

    from torch import nn

    from afd_connectors.layout import Role
    from afd_models.exchange import Exchange
    from afd_models.spec import MoE


@contextmanager
def cut(spec: MoE, role: Role, exchange: Exchange | None, keep: Keep = NOTHING) -> Iterator[None]:
    """While active, models of ``spec.module`` are built without what ``role`` does not hold.

    exchange: where the attention role's stand-ins send their rows; None on the FFN role.
    keep: what attention keeps of the FFNs; the same on both roles.
    ValueError names every declared name that the module does not have.
    """
    module = importlib.import_module(spec.module)
    if role == "attention":
        if exchange is None:
            raise ValueError("Expected an exchange for the attention role's stand-ins, found none.")
        replacements = _attention(spec, module, exchange, keep)
    else:
        replacements = _ffn(spec, module, keep)
    natives = {name: getattr(module, name) for name in replacements}
    for name, replacement in replacements.items():
        setattr(module, name, replacement)
    try:
        yield
    finally:
        for name, native in natives.items():
            setattr(module, name, native)


def _attention(spec: MoE, module: ModuleType, exchange: Exchange, keep: Keep) -> Mapping[str, object]:
    """The experts' factory and every dense FFN class become stand-ins."""
    _require(spec, module, (spec.experts, *spec.dense))
    replaced: dict[str, object] = {}
    for name in spec.dense:
        native = getattr(module, name)
        either = standing_for(StandIn, native)
        whole = native if keep.dense else standing_for(RemoteFFNProxy, either, exchange=exchange)
        replaced[name] = _choosing(spec, either, whole, native if keep.shared else standing_for(Absent, either))
    experts = standing_for(RemoteExperts, getattr(module, spec.experts), exchange=exchange, keep=keep)
    return {spec.experts: experts, **replaced}


def _ffn(spec: MoE, module: ModuleType, keep: Keep) -> Mapping[str, object]:
    """Attention classes become absent, and with them norms, embeddings, the LM head and what attention keeps."""
    _require(spec, module, (*spec.attention, spec.experts, *spec.dense))
    unused = tuple(name for name in spec.unused if hasattr(module, name))
    replaced: dict[str, object] = {
        name: standing_for(Absent, getattr(module, name)) for name in (*spec.attention, *unused)
    }
    if keep == NOTHING:
        return replaced
    for name in spec.dense:
        native = getattr(module, name)
        either = standing_for(StandIn, native)
        absent = standing_for(Absent, either)
        whole, shared = (absent if kept_there else native for kept_there in (keep.dense, keep.shared))
        replaced[name] = _choosing(spec, either, whole, shared)
    experts: Callable[..., nn.Module] = getattr(module, spec.experts)
    return {**replaced, spec.experts: kept.without(keep, experts)}


def _choosing(spec: MoE, either: type[StandIn], whole: type[nn.Module], shared: type[nn.Module]) -> type[StandIn]:
    """``either``, made to build a layer's whole FFN as ``whole`` and shared experts as ``shared``.

    Each is the native class or a stand-in that derives from ``either``.
    """

    def choose(cls: type[StandIn], *args: object, prefix: str = "", **kwargs: object) -> nn.Module:
        chosen: type[nn.Module] = cls
        if cls is either:
            chosen = whole if prefix.endswith(f".{spec.ffn}") else shared
        if issubclass(chosen, StandIn):
            return StandIn.__new__(chosen)
        return chosen(*args, prefix=prefix, **kwargs)

    either.__new__ = choose  # type: ignore[method-assign, assignment]
    return either


def _require(spec: MoE, module: ModuleType, names: tuple[str, ...]) -> None:
    missing = [name for name in names if not hasattr(module, name)]
    if missing:
        raise ValueError(
            f"Expected {module.__name__} to define {', '.join(names)}, found no {', '.join(missing)}: this vLLM is not "
            f"one that the declaration of {spec.arch} was tested with ({spec.vllm}); adapt it in afd_models/families."
        )
