"""How long each role takes for its rows: estimated from a model and a device, or measured and estimated in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from afd_workers.planner.device import Device
from afd_workers.planner.model import Model


class Times(Protocol):
    """Seconds. tp: attention ranks that share each row's attention.

    ep: ranks of an FFN server, which share all of its weights. dp: native ranks, which share the experts alone.
    """

    def attention(self, rows: float, context: float, tp: int = 1) -> float:
        """A decode step of `rows` requests with `context` tokens each: all layers, the head, sampling."""
        ...

    def ffn(self, rows: float, ep: int = 1, dp: int = 1) -> float:
        """All layers' FFNs on `rows` rows of all these ranks together."""
        ...

    def hop(self, rows: float) -> float:
        """One message of `rows` rows of the model's width, one way."""
        ...

    def prompt(self, length: float, tp: int = 1, ranks: int = 1) -> tuple[float, float, float]:
        """(attention, FFN, transfers both ways) per token of prompts of `length` tokens, taken in large batches.

        ranks: ep or dp; both share the work, if not the weights.
        """
        ...


@dataclass(frozen=True, slots=True)
class Estimated:
    """From what a device reaches: the longer of reading and computing, and a launch per layer.

    model: (tp, ep, dp) -> the model so spread.
    """

    model: Callable[[int, int, int], Model]
    device: Device

    def attention(self, rows: float, context: float, tp: int = 1) -> float:
        """See Times. Twice an FFN layer's launches: attention's layers are made of more kernels."""
        model, device = self.model(tp, 1, 1), self.device
        own = max(model.attention.read / device.bytes_s, rows * model.attention.flops / device.flops_s)
        shared = 0.0 if tp == 1 else model.layers * self.hop(rows)
        return 2 * model.layers * device.launch_s + own + self.context(rows, context, tp) + shared

    def context(self, rows: float, context: float, tp: int = 1) -> float:
        """What reading the cache of `context` tokens takes of a step."""
        model = self.model(tp, 1, 1)
        return rows * context * model.kv / (self.device.latent_bytes_s if model.latent else self.device.kv_bytes_s)

    def ffn(self, rows: float, ep: int = 1, dp: int = 1) -> float:
        """See Times. Several ranks' rows meet by one collective before and one after each layer (all `rows`)."""
        model, device = self.model(1, ep, dp), self.device
        read = (model.ffn.read + model.ffn.expert_bytes * model.touched(rows)) / device.bytes_s
        computed = rows * model.ffn.flops / (ep * dp) / device.flops_s
        return model.layers * device.launch_s + max(read, computed)

    def hop(self, rows: float) -> float:
        """See Times."""
        return self.device.hop_s + rows * self.model(1, 1, 1).row / self.device.link_bytes_s

    def prompt(self, length: float, tp: int = 1, ranks: int = 1) -> tuple[float, float, float]:
        """See Times. A token looks at half of its prompt on average."""
        model, device = self.model(tp, 1, 1), self.device
        attention = (model.attention.flops + model.context_flops * length / 2) / device.flops_s
        moved = 2 * model.layers * model.row / device.link_bytes_s
        return attention, model.ffn.flops / ranks / device.flops_s, moved


@dataclass(frozen=True, slots=True)
class Point:
    """One measured size, in seconds; context: tokens that each request has. native: whole steps on one device."""

    rows: int
    context: float
    attention: float
    ffn: float
    hop: float
    native: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """Lines through measured points; beyond them, and for shared roles, in proportion to the estimate."""

    points: Sequence[Point]
    estimate: Estimated
    _by_context: Mapping[float, tuple[Point, ...]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("Expected at least one measured size, found none: give the file of a finished run.")
        found: dict[float, list[Point]] = {}
        for point in sorted(self.points, key=lambda each: (each.context, each.rows)):
            found.setdefault(point.context, []).append(point)
        object.__setattr__(self, "_by_context", {context: tuple(each) for context, each in found.items()})

    def attention(self, rows: float, context: float, tp: int = 1) -> float:
        """See Times."""
        estimate, contexts = self.estimate, sorted(self._by_context)

        def at(measured: float) -> float:
            pairs = [(point.rows, point.attention) for point in self._by_context[measured]]
            return _line(pairs, rows, lambda n: estimate.attention(n, measured))

        def moved(measured: float) -> float:
            return at(measured) + estimate.context(rows, context) - estimate.context(rows, measured)

        if context <= contexts[0]:
            found = max(moved(contexts[0]), 0.0)
        elif context >= contexts[-1]:
            found = moved(contexts[-1])
        else:
            low, high = next((a, b) for a, b in pairwise(contexts) if a <= context <= b)
            found = at(low) + (at(high) - at(low)) * (context - low) / (high - low)
        return found if tp == 1 else found * estimate.attention(rows, context, tp) / estimate.attention(rows, context)

    def ffn(self, rows: float, ep: int = 1, dp: int = 1) -> float:
        """See Times."""
        found = _line(self._pairs(lambda point: point.ffn), rows, self.estimate.ffn)
        return found if ep == dp == 1 else found * self.estimate.ffn(rows, ep, dp) / self.estimate.ffn(rows)

    def hop(self, rows: float) -> float:
        """See Times."""
        return _line(self._pairs(lambda point: point.hop), rows, self.estimate.hop)

    def prompt(self, length: float, tp: int = 1, ranks: int = 1) -> tuple[float, float, float]:
        """See Times; estimated."""
        return self.estimate.prompt(length, tp, ranks)

    def _pairs(self, value: Callable[[Point], float]) -> list[tuple[int, float]]:
        """(rows, value) of the least context."""
        first = self._by_context[min(self._by_context)]
        return [(point.rows, value(point)) for point in first]


def _line(pairs: Sequence[tuple[int, float]], rows: float, estimate: Callable[[float], float]) -> float:
    """At `rows`, between measured pairs on a line; outside what the nearest pair has, changed as the estimate does."""
    (least, first), (most, last) = pairs[0], pairs[-1]
    if rows <= least:
        return max(0.0, first + min(0.0, estimate(rows) - estimate(least)))
    if rows >= most:
        return last + max(0.0, estimate(rows) - estimate(most))
    (low, below), (high, above) = next(pair for pair in pairwise(pairs) if pair[0][0] <= rows <= pair[1][0])
    return below + (above - below) * (rows - low) / (high - low)
