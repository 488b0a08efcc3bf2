"""Cuts a model by role: rebinds the names its own constructors look up, only while it is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from afd_models.names import Names
from afd_models.standins import Absent, RemoteBlock, RemoteExperts, RemoteFFNProxy, StandIn, standing_for

if TYPE_CHECKING:
    from afd_connectors.layout import Role
    from afd_models.exchange import Exchange
    from afd_models.spec import MoE


@contextmanager
def cut(spec: MoE, role: Role, exchange: Exchange | None) -> Iterator[None]:
    """While active, models of ``spec.modules`` are built without what ``role`` does not hold.

    exchange: where the attention role's stand-ins send their rows; None on the FFN role.
    ValueError names every declared name that no module has.
    """
    names = Names(spec.modules)
    if role == "attention":
        if exchange is None:
            raise ValueError("Expected an exchange for the attention role's stand-ins, found none.")
        replacements = _attention(spec, names, exchange)
    else:
        replacements = _ffn(spec, names)
    natives = [(*place, getattr(*place)) for name in replacements for place in names.places(name)]
    for name, replacement in replacements.items():
        for holder, attribute in names.places(name):
            setattr(holder, attribute, replacement)
    try:
        yield
    finally:
        for holder, attribute, native in natives:
            setattr(holder, attribute, native)


def _attention(spec: MoE, names: Names, exchange: Exchange) -> Mapping[str, object]:
    """The experts' factory or the block around it, and every dense FFN class, become stand-ins."""
    _require(spec, names, spec.rebound)
    dense = {name: _dense(spec, names.native(name), exchange) for name in spec.dense}
    experts = names.native(spec.experts)
    if spec.block:
        block = standing_for(RemoteBlock, names.native(spec.block), exchange=exchange)
        return {spec.block: block, spec.experts: standing_for(Absent, experts), **dense}
    return {spec.experts: standing_for(RemoteExperts, experts, exchange=exchange), **dense}


def _dense(spec: MoE, native: object, exchange: Exchange) -> type[StandIn]:
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


def _ffn(spec: MoE, names: Names) -> Mapping[str, object]:
    """Attention classes become absent, and with them norms, embeddings and the LM head."""
    _require(spec, names, spec.rebound)
    unused = tuple(name for name in spec.unused if names.places(name))
    return {name: standing_for(Absent, names.native(name)) for name in (*spec.attention, *unused)}


def _require(spec: MoE, names: Names, wanted: tuple[str, ...]) -> None:
    missing = [name for name in wanted if not names.places(name)]
    if missing:
        raise ValueError(
            f"Expected {' or '.join(spec.modules)} to define {', '.join(wanted)}, found no {', '.join(missing)}: this "
            f"vLLM is not one that the declaration of {spec.arch} was tested with ({spec.vllm}); adapt it in "
            "afd_models/families."
        )
