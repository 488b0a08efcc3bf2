"""The arithmetic: a deployment under a load, from times per role to tokens per second and the term that bounds it."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import dataclass

from afd_workers.planner.deployment import Deployment
from afd_workers.planner.device import Device
from afd_workers.planner.model import Model
from afd_workers.planner.times import Times

STAGES = 2  # of a step with dual-batch overlap
_MOST = 10**9  # of tokens and of requests; more is a slip of the finger


def _check(name: str, value: float, least: int, most: int) -> None:
    if not least <= value <= most:  # nan is neither
        raise ValueError(f"Expected {name} from {least} to {most}, found {reprlib.repr(value)}: correct it.")


@dataclass(frozen=True, slots=True)
class Load:
    """prompt, output: tokens of every request. concurrency: requests that are always there, over all servers."""

    prompt: int
    output: int
    concurrency: int

    def __post_init__(self) -> None:
        for name, least in (("prompt", 0), ("output", 1), ("concurrency", 1)):
            _check(name, getattr(self, name), least, _MOST)

    @property
    def context(self) -> float:
        """Tokens that a request has on average while it runs."""
        return self.prompt + self.output / 2


@dataclass(frozen=True, slots=True)
class Limits:
    """What servers are started with. utilization: of a device's memory. rows: requests that a rank runs at most.

    front_tokens_s: that one API server can stream, 0 where it is not to count.
    """

    utilization: float = 0.9
    rows: int = 1024
    front_tokens_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.utilization > 0:
            raise ValueError(f"Expected utilization above 0, found {self.utilization}: give a share such as 0.9.")
        _check("utilization", self.utilization, 0, 1)
        _check("rows of a rank", self.rows, 1, _MOST)
        _check("tokens per second of an API server", self.front_tokens_s, 0, _MOST)


@dataclass(frozen=True, slots=True)
class Terms:
    """Of one step, in seconds."""

    attention: float
    ffn: float
    transfer: float
    prompts: float

    @property
    def total(self) -> float:
        """Without overlap."""
        return self.attention + self.ffn + self.transfer + self.prompts

    @property
    def largest(self) -> str:
        """Its name."""
        named = {
            "attention": self.attention, "FFN": self.ffn, "transfers": self.transfer, "prompts": self.prompts,
        }  # fmt: skip
        return max(named, key=lambda name: named[name])


@dataclass(frozen=True, slots=True)
class Forecast:
    """rows: requests that run on an attention rank. kv_tokens: that it has room for. step_s: of all its requests.

    tokens_s: of all ranks. bound: what to change first to get more. Without room for one request, rows and tokens_s
    are 0.
    """

    deployment: Deployment
    overlap: bool
    rows: float
    kv_tokens: int
    step_s: float
    tokens_s: float
    terms: Terms
    bound: str

    @property
    def tpot_ms(self) -> float:
        """Milliseconds from one token of a request to its next, on average."""
        return 1e3 * self.step_s


@dataclass(frozen=True, slots=True)
class Planner:
    """model: (tp, ep, dp) -> the model so spread, see Model.of."""

    model: Callable[[int, int, int], Model]
    times: Times
    device: Device
    limits: Limits

    def kv_tokens(self, deployment: Deployment) -> int:
        """Room of one attention rank (of one replica), in tokens."""
        model = self.model(deployment.tp, 1, deployment.attention if deployment.kind == "ep" else 1)
        held = model.attention.weights if deployment.kind == "split" else model.whole
        free = self.device.memory * self.limits.utilization - self.device.workspace - held
        return max(0, int(free / model.kv))

    def fits(self, deployment: Deployment) -> bool:
        """Whether the FFN ranks' weights fit."""
        held = self.model(1, deployment.ep, 1).ffn.weights if deployment.kind == "split" else 0.0
        return held + self.device.workspace <= self.device.memory * self.limits.utilization

    def forecast(self, deployment: Deployment, load: Load, *, overlap: bool = False) -> Forecast:
        """overlap: two stages in flight, which native deployments do not have (ValueError)."""
        if overlap and deployment.kind != "split":
            raise ValueError(f"Expected a split such as 3A1F for overlap, found {deployment}: leave overlap out.")
        kv_tokens = self.kv_tokens(deployment)
        room = kv_tokens // load.context if self.fits(deployment) else 0.0
        wanted = load.concurrency / deployment.attention
        rows = min(wanted, float(self.limits.rows), room)
        if room < 1:
            return Forecast(deployment, overlap, 0.0, kv_tokens, 0.0, 0.0, Terms(0, 0, 0, 0), "memory")
        terms = self._terms(deployment, load, rows)
        step, bound = self._overlapped(deployment, load, rows) if overlap else (terms.total, terms.largest)
        if rows < wanted:
            bound = "KV room" if room <= self.limits.rows else "rows per server"
        tokens = deployment.attention * rows / step
        front = self.limits.front_tokens_s * deployment.attention
        if 0 < front < tokens:
            tokens, step, bound = front, deployment.attention * rows / front, "API servers"
        return Forecast(deployment, overlap, rows, kv_tokens, step, tokens, terms, bound)

    def _terms(self, deployment: Deployment, load: Load, rows: float) -> Terms:
        """Without overlap: attention, then the FFN of all peers' rows as one batch, two hops a layer."""
        times, arriving = self.times, rows * load.prompt / load.output
        attention, ffn, moved = times.prompt(load.prompt, deployment.tp, self._shared(deployment))
        hops = 2 * self.model(1, 1, 1).layers
        own = times.attention(rows, load.context, deployment.tp)
        if deployment.kind == "native":
            return Terms(own, times.ffn(rows), 0.0, arriving * (attention + ffn))
        if deployment.kind == "ep":
            ranks = deployment.attention
            together = times.ffn(ranks * rows, dp=ranks)
            # Each rank brings its prompts, all share the experts' work on them.
            prompts = arriving * (attention + ranks * ffn + (ranks - 1) * moved)
            return Terms(own, together, hops * times.hop((ranks - 1) * rows) if ranks > 1 else 0.0, prompts)
        there = deployment.at_ffn(rows)
        prompts = arriving * (attention + moved) + there * load.prompt / load.output * ffn
        return Terms(own, times.ffn(there, deployment.ep), hops * times.hop(rows / deployment.tp), prompts)

    def _overlapped(self, deployment: Deployment, load: Load, rows: float) -> tuple[float, str]:
        """(seconds, what bounds them) of a step of two stages: whichever of three takes longest, and the first layer.

        Attention computes both stages, the FFN both, and a stage passes through both and two hops per layer, whatever
        the other does. Prompts are part of what either role computes.
        """
        times, layers = self.times, self.model(1, 1, 1).layers
        per_row = load.prompt / load.output
        attention, ffn, moved = times.prompt(load.prompt, deployment.tp, self._shared(deployment))
        half, there = rows / STAGES, deployment.at_ffn(rows / STAGES)
        one, other = times.attention(half, load.context, deployment.tp), times.ffn(there, deployment.ep)
        hops = 2 * layers * times.hop(half / deployment.tp)
        busy = {
            "attention": STAGES * (one + half * per_row * attention),
            "FFN": STAGES * (other + there * per_row * ffn),
            "one stage's way": one + other + hops + half * per_row * (attention + moved) + there * per_row * ffn,
        }
        longest = max(busy, key=lambda name: busy[name])
        return busy[longest] + one / layers, longest

    def _shared(self, deployment: Deployment) -> int:
        return deployment.attention if deployment.kind == "ep" else deployment.ep
