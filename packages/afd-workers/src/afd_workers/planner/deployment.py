"""How many devices do what: native replicas, native expert parallelism, or a split, in one notation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from afd_connectors.layout import Layout
from afd_workers.launch.topology import Topology

Kind = Literal["native", "ep", "split"]
_NATIVE = re.compile(r"native([1-9][0-9]{0,3})")
_EP = re.compile(r"dp([1-9][0-9]{0,3})ep")
_SHARED = re.compile(r"(.+?)(?:-tp([1-9][0-9]{0,2}))?(?:-ep([1-9][0-9]{0,2}))?")


@dataclass(frozen=True, slots=True)
class Deployment:
    """attention: native replicas, ranks of data parallelism, or attention replicas; ffn: FFN servers, 0 unless split.

    tp: devices per attention replica. ep: devices per FFN server, which share its weights: whole
    experts, parts of every other FFN.
    """

    kind: Kind
    attention: int
    ffn: int = 0
    tp: int = 1
    ep: int = 1

    @classmethod
    def parse(cls, text: str) -> Deployment:
        """``native4``, ``dp4ep`` (data parallel 4 with expert parallelism), ``3A1F``, ``1A1F-tp2-ep2``.

        ValueError for anything else.
        """
        if match := _NATIVE.fullmatch(text):
            return cls("native", int(match[1]))
        if match := _EP.fullmatch(text):
            return cls("ep", int(match[1]))
        match = _SHARED.fullmatch(text)
        try:
            found = Topology.parse(match[1] if match else text)
        except ValueError as error:
            raise ValueError(
                f"Expected a deployment such as native4, dp4ep, 3A1F or 1A1F-tp2-ep2, found {text!r}: write one of "
                "these."
            ) from error
        assert match is not None
        return cls("split", found.attention, found.ffn, int(match[2] or 1), int(match[3] or 1))

    @property
    def devices(self) -> int:
        """Of all ranks."""
        return self.attention * self.tp + self.ffn * self.ep

    @property
    def ranks(self) -> int:
        """Attention ranks of a split: each process of an attention replica is one."""
        return self.attention * self.tp

    @property
    def overlaps(self) -> bool:
        """Whether its steps may be split in two stages: AFD refuses that in roles of several processes."""
        return self.kind == "split" and self.tp == self.ep == 1

    def check(self) -> None:
        """ValueError for a split that AFD refuses on devices; see refusals.check_platform."""
        for first in range(0, self.ranks, self.tp) if self.kind == "split" and self.tp > 1 else ():
            layouts = (Layout("attention", first + place, self.ranks, self.ffn) for place in range(self.tp))
            if len({peer for layout in layouts for peer in layout.peers}) > 1:
                raise ValueError(
                    f"Expected one FFN server for the {self.tp} processes of an attention replica, found {self}: use "
                    "fewer FFN servers, each of which may have several devices (-ep2)."
                )

    def at_ffn(self, rows: float) -> float:
        """Rows that reach the fullest FFN server where every attention replica has `rows`.

        Attention replicas are dealt to FFN servers in blocks that differ by at most one, or share their rows out. Each
        process of a replica brings a share of its rows.
        """
        ranks, brought = self.ranks, rows / self.tp
        if ranks >= self.ffn:
            return brought * -(-ranks // self.ffn)
        return brought / (self.ffn // ranks)

    def __str__(self) -> str:
        if self.kind == "native":
            return f"native{self.attention}"
        if self.kind == "ep":
            return f"dp{self.attention}ep"
        shared = f"-tp{self.tp}" if self.tp > 1 else ""
        return f"{self.attention}A{self.ffn}F{shared}" + (f"-ep{self.ep}" if self.ep > 1 else "")
