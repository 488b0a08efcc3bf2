"""Cuts a model by role: rebinds the names its own constructors look up, only while it is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from afd_models import kept
from afd_models.keep import NOTHING, Keep, check_block
from afd_models.names import Names
from afd_models.standins import Absent, RemoteBlock, RemoteExperts, RemoteFFNProxy, StandIn, standing_for

if TYPE_CHECKING:
    from torch import nn

    from afd_connectors.layout import Role
    from afd_models.exchange import Exchange
    from afd_models.spec import MoE


@contextmanager
def cut(spec: MoE, role: Role, exchange: Exchange | None, keep: Keep = NOTHING) -> Iterator[None]:
    """While active, models of ``spec.modules`` are built without what ``role`` does not hold.

    exchange: where the attention role's stand-ins send their rows; None on the FFN role.
    keep: what attention keeps of the FFNs; the same on both roles.
    ValueError names every declared name that no module has, and what of ``keep`` the family does not allow.
    """
    check_block(spec, keep)
    names = Names(spec.modules)
    if role == "attention":
        if exchange is None:
            raise ValueError("Expected an exchange for the attention role's stand-ins, found none.")
        replacements = _attention(spec, names, exchange, keep)
    else:
        replacements = _ffn(spec, names, keep)
    natives = [(*place, getattr(*place)) for name in replacements for place in names.places(name)]
    for name, replacement in replacements.items():
        for holder, attribute in names.places(name):
            setattr(holder, attribute, replacement)
    try:
        yield
    finally:
        for holder, attribute, native in natives:
            setattr(holder, attribute, native)


def _attention(spec: MoE, names: Names, exchange: Exchange, keep: Keep) -> Mapping[str, object]:
    """The experts' factory or the block around it, and every dense FFN class, become stand-ins."""
    _require(spec, names, spec.rebound)
    replaced: dict[str, object] = {}
    for name in spec.dense:
        native, either = names.native(name), standing_for(StandIn, names.native(name))
        whole = native if keep.dense else standing_for(RemoteFFNProxy, either, exchange=exchange)
        replaced[name] = _choosing(spec, either, whole, native if keep.shared else standing_for(Absent, either))
    experts = names.native(spec.experts)
    if spec.block:
        block = standing_for(RemoteBlock, names.native(spec.block), exchange=exchange)
        return {spec.block: block, spec.experts: standing_for(Absent, experts), **replaced}
    return {spec.experts: standing_for(RemoteExperts, experts, exchange=exchange, keep=keep), **replaced}


def _ffn(spec: MoE, names: Names, keep: Keep) -> Mapping[str, object]:
    """Attention classes become absent, and with them norms, embeddings, the LM head and what attention keeps."""
    _require(spec, names, spec.rebound)
    unused = tuple(name for name in spec.unused if names.places(name))
    replaced: dict[str, object] = {
        name: standing_for(Absent, names.native(name)) for name in (*spec.attention, *unused)
    }
    if keep == NOTHING:
        return replaced
    for name in spec.dense:
        native, either = names.native(name), standing_for(StandIn, names.native(name))
        absent = standing_for(Absent, either)
        whole, shared = (absent if kept_there else native for kept_there in (keep.dense, keep.shared))
        replaced[name] = _choosing(spec, either, whole, shared)
    experts = cast("Callable[..., nn.Module]", names.native(spec.experts))
    return {**replaced, spec.experts: kept.without(keep, experts)}


def _choosing(spec: MoE, either: type[StandIn], whole: object, shared: object) -> type[StandIn]:
    """``either``, made to build a layer's whole FFN as ``whole`` and shared experts as ``shared``.

    Each is the native class or a stand-in that derives from ``either``.
    """

    def choose(cls: type[StandIn], *args: object, prefix: str = "", **kwargs: object) -> nn.Module:
        chosen: object = cls
        if cls is either:
            chosen = whole if prefix.endswith(f".{spec.ffn}") else shared
        if isinstance(chosen, type) and issubclass(chosen, StandIn):
            return StandIn.__new__(chosen)
        return cast("Callable[..., nn.Module]", chosen)(*args, prefix=prefix, **kwargs)

    either.__new__ = choose  # type: ignore[method-assign, assignment]
    return either


def _require(spec: MoE, names: Names, wanted: tuple[str, ...]) -> None:
    missing = [name for name in wanted if not names.places(name)]
    if missing:
        raise ValueError(
            f"Expected {' or '.join(spec.modules)} to define {', '.join(wanted)}, found no {', '.join(missing)}: this "
            f"vLLM is not one that the declaration of {spec.arch} was tested with ({spec.vllm}); adapt it in "
            "afd_models/families."
        )
