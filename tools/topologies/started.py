"""What a trial of topologies is asked for, and the servers that it started for one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tools.gpu.serve_parts import Part, Spec
from tools.gpu.servers import Server


@dataclass(frozen=True, slots=True)
class Wanted:
    """device: cuda or cpu. count: prompts of each attention server; tokens: of each answer.

    standby: whether another server of the last FFN rank stands by when that rank's is killed.
    """

    device: str
    family: str
    count: int
    tokens: int
    kill: bool
    dtype: str
    standby: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    """A topology's servers: those that are asked, and the FFN's with what they were started from."""

    part: Part
    fronts: Sequence[Server]
    ffn: Sequence[Server]
    specs: Sequence[Spec]
    standby: Server | None

    def ready(self, until: float) -> None:
        """Waits for all of them; Failed when one ends, or at time.monotonic() `until`."""
        for server in (*self.fronts, *self.ffn, *(() if self.standby is None else (self.standby,))):
            server.ready(until)
