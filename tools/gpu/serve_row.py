"""One line of the table of `bench_serve_gpu`, with what the planner expected beside what was measured."""

from __future__ import annotations

from dataclasses import dataclass

HEAD = (
    "server              conc   tok/s  planned  error  TPOT p50  planned  TPOT p99  TTFT p50  failed  GiB used"
    "   KV tokens  planned: bound by"
)


@dataclass(frozen=True, slots=True)
class Planned:
    """What was expected; tokens per second of all servers, milliseconds per token, and the term that bounds them."""

    tokens_s: float
    tpot: float
    bound: str


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; times in milliseconds, used_gib per device, kv_tokens per cache.

    planned: None where the planner has no times (without graphs the host decides, and placements change each part).
    """

    server: str
    model: str
    prompt: int
    output: int
    concurrency: int
    tokens_s: float
    tpot_p50: float
    tpot_p99: float
    ttft_p50: float
    failed: int
    used_gib: list[float]
    kv_tokens: list[int]
    planned: Planned | None

    def __str__(self) -> str:
        used, kv = "+".join(f"{gib:.1f}" for gib in self.used_gib), "+".join(f"{count:,}" for count in self.kv_tokens)
        expected, error, tpot, bound = "-", "-", "-", ""
        if self.planned is not None:
            expected, tpot, bound = f"{self.planned.tokens_s:.0f}", f"{self.planned.tpot:.2f}", self.planned.bound
            error = f"{100 * (self.planned.tokens_s / self.tokens_s - 1):+.0f}%" if self.tokens_s else "-"
        return (
            f"{self.server:19} {self.concurrency:4} {self.tokens_s:7.0f} {expected:>8} {error:>6} {self.tpot_p50:9.2f}"
            f" {tpot:>8} {self.tpot_p99:9.2f} {self.ttft_p50:9.1f} {self.failed:7} {used:>9} {kv:>11}  {bound}"
        )
