"""Where the roles meet and how long they wait for one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Settings:
    """What a connector is told besides layout and shape; times in seconds.

    host, port: where FFN rank 0 listens (FFN rank f on port + f); timeout_s: a live peer owes an answer
    within it; recovery_timeout_s: how long an exchange is retried; join_timeout_s: the first rendezvous;
    secret: shared by both roles, None for none; extra: options of one connector. Raises ValueError when out
    of range.
    """

    host: str = "127.0.0.1"
    port: int = 1239
    timeout_s: float = 10.0
    recovery_timeout_s: float = 240.0
    join_timeout_s: float = 120.0
    secret: str | None = field(default=None, repr=False)
    extra: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.host:
            raise ValueError("host must name an address, found an empty string.")
        if not 1 <= self.port <= 65535:
            raise ValueError(f"port must lie in 1..65535, found {self.port!r}.")
        for name, value in (
            ("timeout_s", self.timeout_s),
            ("recovery_timeout_s", self.recovery_timeout_s),
            ("join_timeout_s", self.join_timeout_s),
        ):
            if not value > 0:
                raise ValueError(f"{name} must be greater than 0 seconds, found {value!r}.")
        if self.secret == "":
            raise ValueError("secret must not be empty; leave it out to run without one.")
        try:
            (self.secret or "").encode()
        except UnicodeEncodeError:  # what an environment variable with other bytes becomes; shown nowhere
            raise ValueError("secret must be UTF-8 text, found bytes that are not; choose another one.") from None
