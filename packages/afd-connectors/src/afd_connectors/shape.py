"""The most that one exchange can carry, known before anything is allocated or captured."""

from __future__ import annotations

from dataclasses import dataclass

from afd_connectors.step import MAX_STAGES

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
ROUTER_BYTES = 4  # routers may answer in float32 whatever the model's dtype, so room is kept for that


@dataclass(frozen=True, slots=True)
class Shape:
    """Upper bounds of one attention rank's exchange.

    tokens: most rows of one exchange; hidden: elements of a row; dtype: torch name of the element type;
    layers: layer numbers are below it; stages: exchanges in flight at once; router: width of the router
    logits that travel along, 0 for none. Raises ValueError when a value is out of range.
    """

    tokens: int
    hidden: int
    dtype: str
    layers: int
    stages: int = 1
    router: int = 0

    def __post_init__(self) -> None:
        for name, value, least in (
            ("tokens", self.tokens, 1),
            ("hidden", self.hidden, 1),
            ("layers", self.layers, 1),
            ("stages", self.stages, 1),
            ("router", self.router, 0),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, found {value!r}.")
        if self.stages > MAX_STAGES:
            raise ValueError(f"stages must be at most {MAX_STAGES}, found {self.stages}.")
        if self.dtype not in DTYPE_BYTES:
            known = ", ".join(DTYPE_BYTES)
            raise ValueError(f"dtype must be one of {known}, found {self.dtype!r}.")

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of hidden states."""
        return self.hidden * DTYPE_BYTES[self.dtype]

    @property
    def hidden_bytes(self) -> int:
        """Bytes of the hidden states of the largest exchange."""
        return self.tokens * self.row_bytes

    @property
    def router_bytes(self) -> int:
        """Bytes kept for the router logits of the largest exchange."""
        return self.tokens * self.router * ROUTER_BYTES

    @property
    def exchange_bytes(self) -> int:
        """Bytes of the largest request."""
        return self.hidden_bytes + self.router_bytes
