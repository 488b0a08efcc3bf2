"""One line of the table of `bench_topologies`."""

from __future__ import annotations

import math
from dataclasses import dataclass

HEAD = (
    "| topology | connector | alone | together | tokens/s | FFN server killed: its requests | the others' "
    "| longest pause, s: its requests | the others' | next token after another listens, s |"
)
Equal = tuple[int, int]


@dataclass(slots=True)
class Outcome:
    """Pairs are (requests with native vLLM's tokens, requests); (0, 0) and nan where nothing was tried.

    hit: requests of attention servers that exchange with the FFN server that was killed; spared: of the others.
    after: since another FFN server listened in its place, or where one stood by already, since the kill.
    """

    part: str
    connector: str
    alone: Equal
    together: Equal
    rate: float
    hit: Equal = (0, 0)
    spared: Equal = (0, 0)
    pause: float = math.nan
    spared_pause: float = math.nan
    after: float = math.nan

    @property
    def right(self) -> bool:
        """Whether all tokens are native's."""
        return all(equal == asked for equal, asked in (self.alone, self.together, self.hit, self.spared))

    def __str__(self) -> str:
        def of(pair: Equal) -> str:
            return f"{pair[0]}/{pair[1]}" if pair[1] else "-"

        def seconds(value: float) -> str:
            return "-" if math.isnan(value) else f"{value:.2f}"

        cells = (
            self.part, self.connector, of(self.alone), of(self.together), f"{self.rate:.0f}", of(self.hit),
            of(self.spared), seconds(self.pause), seconds(self.spared_pause), seconds(self.after),
        )  # fmt: skip
        return f"| {' | '.join(cells)} |"


def added(pairs: list[Equal]) -> Equal:
    """Sums of both."""
    return sum(equal for equal, _ in pairs), sum(asked for _, asked in pairs)
