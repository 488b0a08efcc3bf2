"""Native and split serving of one model, prompt by prompt: tokens, texts and time per step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from afd_workers.demo.client import Client, Completion


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt completed by both."""

    prompt: str
    native: str
    split: str
    identical: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """All pairs; times in milliseconds. ``exchange_ms``: one exchange seen from attention, FFN compute included."""

    pairs: tuple[Pair, ...]
    tokens: int
    native_step_ms: float
    split_step_ms: float
    exchange_ms: float
    exchanges_per_step: int

    @property
    def identical(self) -> bool:
        """Whether every token of every prompt is equal."""
        return all(pair.identical for pair in self.pairs)

    @property
    def added_ms_per_exchange(self) -> float:
        """What splitting costs per exchange: the difference of the steps, shared out."""
        return (self.split_step_ms - self.native_step_ms) / self.exchanges_per_step

    def as_json(self) -> dict[str, object]:
        """Plain values for machines."""
        return {
            "identical": self.identical,
            **asdict(self),
            "added_ms_per_exchange": self.added_ms_per_exchange,
        }


def compare(native: Client, split: Client, prompts: Sequence[str], tokens: int) -> Comparison:
    """Completes every prompt on both servers, one request at a time so that neither batches what the other does not."""
    for client in (native, split):
        client.complete(prompts[0], 8)  # the first request pays for lazy initialisation
    before = split.worker_figures("exchange_figures")
    pairs, native_ms, split_ms = [], [], []
    for prompt in prompts:
        one, took_native = _timed(native, prompt, tokens)
        other, took_split = _timed(split, prompt, tokens)
        pairs.append(Pair(prompt, one.text, other.text, one.tokens == other.tokens))
        native_ms.append(took_native)
        split_ms.append(took_split)
    after = split.worker_figures("exchange_figures")
    exchanges = after["exchanges"] - before["exchanges"]
    return Comparison(
        pairs=tuple(pairs),
        tokens=tokens * len(prompts),
        native_step_ms=median(native_ms),
        split_step_ms=median(split_ms),
        exchange_ms=1e3 * (after["seconds"] - before["seconds"]) / exchanges,
        exchanges_per_step=round(exchanges / (after["steps"] - before["steps"])),
    )


def _timed(client: Client, prompt: str, tokens: int) -> tuple[Completion, float]:
    """A completion and its milliseconds per decode step: a one-token request takes prompt and HTTP out of it."""
    first = client.complete(prompt, 1)
    whole = client.complete(prompt, tokens)
    return whole, 1e3 * (whole.seconds - first.seconds) / (tokens - 1)
