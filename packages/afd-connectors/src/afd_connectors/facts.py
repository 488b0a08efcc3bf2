"""What both roles must agree on before they exchange anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Literal

from afd_connectors.errors import FrameError, HandshakeRefused, quoted
from afd_connectors.layout import Role

PROTOCOL = 2  # 1: without wire_dtype
Value = int | str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """One side's view of the deployment; engine versions are plain strings, nothing here knows an engine.

    model_digest: any string that is equal exactly when both roles serve the same weights; gate, shared, dense: the role
    that computes router logits, shared experts, and layers without experts; graph_sizes: token counts that graphs are
    captured for, empty without graphs;
    tokens: most rows of one exchange, 0 where a side does not say; wire_dtype: what hidden states travel as, "model" as
    the model has them.
    """

    afd_version: str
    vllm_version: str
    model_digest: str
    dtype: str
    hidden: int
    layers: int
    router: int
    gate: Role
    stages: int
    graph_sizes: tuple[int, ...]
    num_attention: int
    num_ffn: int
    tokens: int = 0
    shared: Role = "ffn"
    dense: Role = "ffn"
    wire_dtype: str = "model"
    protocol: int = PROTOCOL

    def difference(self, other: Facts) -> tuple[str, Value, Value] | None:
        """(field, own value, other's value) of the first field that differs; None when all agree."""
        for name in _ORDER:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return name, mine, theirs
        return None

    def to_wire(self) -> dict[str, object]:
        """The facts as plain JSON values."""
        return asdict(self) | {"graph_sizes": list(self.graph_sizes)}

    @classmethod
    def from_wire(cls, wire: object) -> Facts:
        """The facts that a peer sent: HandshakeRefused for another protocol, FrameError when malformed."""
        if not isinstance(wire, Mapping):
            raise FrameError(f"facts must be a mapping, found {type(wire).__name__}.")
        protocol = wire.get("protocol")
        if _is_int(protocol) and protocol != PROTOCOL:
            raise HandshakeRefused(f"the sides disagree on protocol: {PROTOCOL} here, {quoted(protocol)} there.")
        values = {}
        for name in _ORDER:
            values[name] = _checked(name, wire.get(name))
        return cls(**values)  # type: ignore[arg-type]  # each value was just checked against its field's kind


_STRINGS = ("afd_version", "vllm_version", "model_digest", "dtype", "wire_dtype")
_ORDER = ("protocol", *(f.name for f in fields(Facts) if f.name != "protocol"))
_HOLDERS = ("gate", "shared", "dense")
_ROLES: tuple[Literal["attention", "ffn"], ...] = ("attention", "ffn")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _checked(name: str, value: object) -> Value:
    if name in _HOLDERS:
        if value in _ROLES:
            return str(value)
        raise FrameError(f"fact {name!r} must be 'attention' or 'ffn', found {quoted(value)}.")
    if name == "graph_sizes":
        if isinstance(value, list) and all(_is_int(size) for size in value):
            return tuple(value)
        raise FrameError(f"fact 'graph_sizes' must be a list of whole numbers, found {quoted(value)}.")
    if name in _STRINGS:
        if isinstance(value, str):
            return value
        raise FrameError(f"fact {name!r} must be a string, found {quoted(value)}.")
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise FrameError(f"fact {name!r} must be a whole number, found {quoted(value)}.")
