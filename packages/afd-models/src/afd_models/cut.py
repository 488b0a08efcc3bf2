"""Cuts a model by role: rebinds the names its own constructors look up, only while it is built."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from afd_models.standins import Absent, RemoteBlock, RemoteExperts, RemoteFFNProxy, StandIn, standing_for

if TYPE_CHECKING:
    from types import ModuleType

    from afd_connectors.layout import Role
    from afd_models.exchange import Exchange
    from afd_models.spec import MoE


@contextmanager
def cut(spec: MoE, role: Role, exchange: Exchange | None) -> Iterator[None]:
    """While active, models of ``spec.module`` are built without what ``role`` does not hold.

    exchange: where the attention role's stand-ins send their rows; None on the FFN role.
    ValueError names every declared name that the module does not have.
    """
    module = importlib.import_module(spec.module)
    if role == "attention":
        if exchange is None:
            raise ValueError("Expected an exchange for the attention role's stand-ins, found none.")
        replacements = _attention(spec, module, exchange)
    else:
        replacements = _ffn(spec, module)
    natives = {name: getattr(module, name) for name in replacements}
    for name, replacement in replacements.items():
        setattr(module, name, replacement)
    try:
        yield
    finally:
        for name, native in natives.items():
            setattr(module, name, native)


def _attention(spec: MoE, module: ModuleType, exchange: Exchange) -> Mapping[str, object]:
    """The experts' factory or the block around it, and every dense FFN class, become stand-ins."""
    _require(spec, module, spec.rebound)
    natives = {name: getattr(module, name) for name in spec.dense}
    dense = {name: _dense(spec, native, exchange) for name, native in natives.items()}
    experts = getattr(module, spec.experts)
    if spec.block:
        block = standing_for(RemoteBlock, getattr(module, spec.block), exchange=exchange)
        return {spec.block: block, spec.experts: standing_for(Absent, experts), **dense}
    return {spec.experts: standing_for(RemoteExperts, experts, exchange=exchange), **dense}


def _dense(spec: MoE, native: type, exchange: Exchange) -> type[StandIn]:
    """A class that builds a layer's whole FFN as remote and shared experts as absent (the remote experts run them)."""
    either = standing_for(StandIn, native)
    remote = standing_for(RemoteFFNProxy, either, exchange=exchange)
    absent = standing_for(Absent, either)

    def choose(cls: type[StandIn], *_args: object, prefix: str = "", **_kwargs: object) -> StandIn:
        if cls is either:
            cls = remote if prefix.endswith(f".{spec.ffn}") else absent
        return StandIn.__new__(cls)

    either.__new__ = choose  # type: ignore[method-assign, assignment]
    return either


def _ffn(spec: MoE, module: ModuleType) -> Mapping[str, object]:
    """Attention classes become absent, and with them norms, embeddings and the LM head."""
    _require(spec, module, spec.rebound)
    unused = tuple(name for name in spec.unused if hasattr(module, name))
    return {name: standing_for(Absent, getattr(module, name)) for name in (*spec.attention, *unused)}


def _require(spec: MoE, module: ModuleType, names: tuple[str, ...]) -> None:
    missing = [name for name in names if not hasattr(module, name)]
    if missing:
        raise ValueError(
            f"Expected {module.__name__} to define {', '.join(names)}, found no {', '.join(missing)}: this vLLM is not "
            f"one that the declaration of {spec.arch} was tested with ({spec.vllm}); adapt it in afd_models/families."
        )
