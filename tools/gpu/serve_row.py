"""One line of the table of `bench_serve_gpu`."""

from __future__ import annotations

from dataclasses import dataclass

HEAD = "server            conc   tok/s  TPOT p50  TPOT p99  TTFT p50  failed  GiB used   KV tokens"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; times in milliseconds, used_gib per device, kv_tokens per cache."""

    server: str
    concurrency: int
    tokens_s: float
    tpot_p50: float
    tpot_p99: float
    ttft_p50: float
    failed: int
    used_gib: list[float]
    kv_tokens: list[int]

    def __str__(self) -> str:
        used, kv = "+".join(f"{gib:.1f}" for gib in self.used_gib), "+".join(f"{count:,}" for count in self.kv_tokens)
        return (
            f"{self.server:17} {self.concurrency:4} {self.tokens_s:7.0f} {self.tpot_p50:9.2f} {self.tpot_p99:9.2f}"
            f" {self.ttft_p50:9.1f} {self.failed:7} {used:>9} {kv:>11}"
        )
