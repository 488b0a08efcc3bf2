"""What one part of a benchmark over HTTP serves with: a deployment and a mode, and the servers that it is made of."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from afd_workers.launch.free import free_ports
from afd_workers.planner.deployment import Deployment
from tools.gpu.setups import CONNECTOR

MODES = ("graph", "dbo", "eager")
#: Where overlap is asked for, the rule that found out where it pays decides, see docs/dual-batch-overlap.md.
OVERLAP = ("--enable-dbo", "--dbo-decode-token-threshold", "2")
_COUNTS = re.compile(r"native([1-9][0-9]*(?:,[1-9][0-9]*)*)")
#: What attention can keep of the feed-forward part, see docs/placement.md, by the word that a part's name has for it.
KEPT = {
    "gate": "compute_gate_on_attention",
    "shared": "shared_experts_on_attention",
    "dense": "dense_layers_on_attention",
}
JOIN_S = 240.0


@dataclass(frozen=True, slots=True)
class Spec:
    """A server to start. name: of its log. arguments: of `vllm serve`, without the model. devices: of the host."""

    name: str
    arguments: tuple[str, ...]
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """deployment: in a mode. counts: how many of native replicas are measured, one after the other, all started once.

    kept: words of KEPT. Names: `native1,2` for one replica and two of the same start, `dp4ep`, `3A1F:dbo`,
    `1A1F-tp2-ep2:graph`, `1A1F:graph+shared+dense`.
    """

    deployment: Deployment
    mode: str = "graph"
    counts: tuple[int, ...] = ()
    kept: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Part:
        """ValueError says which names there are."""
        name, _, words = text.partition(":")
        mode, *kept = (words or "graph").split("+")
        if mode not in MODES:
            raise ValueError(
                f"Expected one of {', '.join(MODES)} after the colon, found {text!r}: write it like 2A2F:dbo."
            )
        if unknown := [word for word in kept if word not in KEPT]:
            raise ValueError(
                f"Expected words of {', '.join(KEPT)} after the mode, found {unknown[0]!r} in {text!r}: write it like "
                "1A1F:graph+shared."
            )
        if match := _COUNTS.fullmatch(name):
            counts = tuple(sorted({int(count) for count in match[1].split(",")}))
            part = cls(Deployment("native", counts[-1]), mode, counts)
        else:
            part = cls(Deployment.parse(name), mode, kept=tuple(kept))
        if kept and part.deployment.kind != "split":
            raise ValueError(f"Expected a split such as 1A1F for what attention keeps, found {text!r}.")
        if mode == "dbo" and part.deployment.kind != "split":
            raise ValueError(f"Expected a split such as 2A2F for dbo, found {text!r}: overlap is between roles.")
        return part

    @property
    def devices(self) -> int:
        """That it needs."""
        return self.deployment.devices

    @property
    def slug(self) -> str:
        """Its name for files."""
        return str(self).translate(str.maketrans(":,+", "---"))

    @property
    def words(self) -> str:
        """Its mode and what attention keeps."""
        return "+".join((self.mode, *self.kept))

    def lacking(self, devices: int) -> str | None:
        """A sentence where a host with so many devices cannot serve it."""
        if devices >= self.devices:
            return None
        return (
            f"{self} needs {self.devices} devices and this host has {devices}: run it where there are {self.devices}."
        )

    def __str__(self) -> str:
        name = str(self.deployment)
        if self.counts:
            name = f"native{','.join(map(str, self.counts))}"
        return f"{name}:{self.words}"


def read_part(text: str) -> Part:
    """For argparse."""
    try:
        return Part.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def specs(part: Part, graphs: Callable[[bool], Sequence[str]], **section: float) -> tuple[list[Spec], list[Spec]]:
    """(servers that are asked, FFN servers). graphs: options of a server that has some and of one that has not.

    section: more of both roles' "afd".
    """
    deployment, captured = part.deployment, tuple(graphs(part.mode != "eager"))
    if deployment.kind == "native":
        return [Spec(f"native-{place}", captured, (place,)) for place in range(deployment.attention)], []
    if deployment.kind == "ep":
        size = deployment.attention
        parallel = ("--data-parallel-size", str(size), "--enable-expert-parallel")
        parallel += ("--all2all-backend", "allgather_reducescatter")
        return [Spec(f"dp{size}ep", (*captured, *parallel), tuple(range(size)))], []
    return _split(part, captured, tuple(graphs(False)), section)


def _split(
    part: Part, captured: Sequence[str], plain: Sequence[str], more: Mapping[str, float]
) -> tuple[list[Spec], list[Spec]]:
    """Attention replicas on the first devices, each a server of its own as native replicas are; then the FFN's."""
    deployment, port = part.deployment, free_ports(part.deployment.ffn)[0]
    common: dict[str, object] = {
        "port": port, "join_timeout_s": JOIN_S, "connector": os.environ.get(CONNECTOR, "auto"),
        "num_attention_ranks": deployment.ranks, "num_ffn_ranks": deployment.ffn, **more,
        **{KEPT[word]: True for word in part.kept},
    }  # fmt: skip
    overlap = OVERLAP if part.mode == "dbo" else ()

    def one(role: str, place: int, first: int, size: int, options: Sequence[str]) -> Spec:
        rank = place * (size if role == "attention" else 1)
        section = {"afd": {**common, "role": role, "rank": rank}}
        parallel: tuple[str, ...] = () if size == 1 else ("--tensor-parallel-size", str(size))
        if role == "ffn" and size > 1:
            parallel += ("--enable-expert-parallel",)
        arguments = (*options, *overlap, *parallel, "--additional-config", json.dumps(section))
        return Spec(f"{role}-{place}", arguments, tuple(range(first, first + size)))

    tp, ep = deployment.tp, deployment.ep
    asked = [one("attention", place, place * tp, tp, captured) for place in range(deployment.attention)]
    first = deployment.attention * tp
    return asked, [one("ffn", place, first + place * ep, ep, plain) for place in range(deployment.ffn)]
