"""Both processes of a hop benchmark, and how what they answer is printed."""

from __future__ import annotations

import os
from collections.abc import Mapping

from afd_connectors.transports.nvlink.sizes import Plan
from tools.gpu.children import Child, Children

LIMIT_S, WAIT_S = 60.0, 3.0
Answer = dict[str, object]


class Pair:
    """Both sides, asked at once. module: what each of them runs. quick: about right data alone."""

    def __init__(self, children: Children, rows: int, hidden: int, module: str, *, quick: bool = False) -> None:
        self._children, self._module, self._quick = children, module, quick
        self._job = {"rows": rows, "hidden": hidden, "limit_s": WAIT_S}
        self._count = 0
        self.ffn = self._start("ffn", 1)
        self.attention = self._start("attention", 0)
        print(f"ready after {self.attention.answer(LIMIT_S)['s']:.2f} s, {self.ffn.answer(LIMIT_S)['s']:.2f} s")
        print(f"met in {self.both({'op': 'meet'})[0]['ms']:.1f} ms", flush=True)

    def replace_ffn(self) -> None:
        """A new FFN process in the place of one that is gone; not met yet."""
        self.ffn = self._start("ffn", 1)
        self.ffn.answer(LIMIT_S)

    def both(self, job: Mapping[str, object], limit_s: float = LIMIT_S) -> tuple[Answer, Answer]:
        """The answers of attention and FFN."""
        self.ffn.begin(job)
        self.attention.begin(job)
        return self.attention.answer(limit_s), self.ffn.answer(limit_s)

    def trips(self, size: int) -> tuple[int, int]:
        """(round trips a graph, replays) that take about as long for every size in bytes."""
        return (4, 5) if self._quick else (20, 60) if size < 8 << 20 else (4, 30)

    def _start(self, role: str, device: int) -> Child:
        self._count += 1
        job = {"role": role, "name": f"afd-hop-{os.getpid()}", **self._job}
        return self._children.start(f"hop-{role}-{self._count}", self._module, job, device)


def pairs(answer: Answer) -> str:
    """p50 and p99."""
    if "failed" in answer:  # as NCCL does where both sides have one device
        return "       - /     -"
    return f"{answer['p50']:8.1f} /{answer['p99']:6.1f}"


def gbs(size: int, answer: Answer) -> str:
    """Gigabytes a second."""
    return f"{size / float(str(answer['p50'])) / 1e3:6.0f}"


def bad(answer: Answer) -> str:
    """What was wrong, if anything was."""
    return "" if answer["right"] and answer["error"] == [0, 0, 0] else f"  WRONG {answer}"


def named(plan: Plan) -> str:
    """A way to travel, in short."""
    if plan.units:
        return f"units, put {plan.put}, wait {plan.wait}"
    return f"put {plan.put}, {plan.chunks} chunks, wait {plan.wait}{' apart' if plan.apart else ''}"
