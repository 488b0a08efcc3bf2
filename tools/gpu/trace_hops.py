"""Lays the traces of both roles beside each other: what each hop of a decode step takes, and each turn in between.

    python -m tools.gpu.trace_hops ATTENTION.json.gz FFN.json.gz

One exchange is request (from the start of attention's send to the end of FFN's receipt), FFN turn (from there to the
start of its send), reply (from there to the end of attention's receipt), attention turn (from there to its next
send). Microseconds, medians over exchanges; the kernels inside a turn, without the gaps between them, beside it.
Request and reply each hold the difference of both processes' clocks, their sum does not.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from tools.gpu.trace_read import SKIP, Launch, Span, busy, launches

HEAD = "exchanges  request  FFN turn (kernels)   reply  attention turn (kernels)  sum x exchanges of a step, ms"


@dataclass(frozen=True, slots=True)
class Turn:
    """Two transfers that follow each other on one role, and the kernels between them in microseconds."""

    before: Span
    after: Span
    kernels: float


def turns(launch: Launch) -> list[Turn]:
    """From each transfer to the next."""
    places = [place for place, kernel in enumerate(launch.kernels) if "nccl" in kernel.name.lower()]
    return [
        Turn(launch.kernels[one], launch.kernels[two], busy(launch.kernels[one + 1 : two]))
        for one, two in pairwise(places)
    ]


def load(path: Path) -> list[Launch]:
    """The steps of a trace on the host's clock."""
    with gzip.open(path, "rt") as stream:
        trace = json.load(stream)
    base = (int(trace.get("baseTimeNanoseconds", 0)) % 10**15) / 1e3  # less, so that parts of a microsecond survive
    return launches({**event, "ts": float(event["ts"]) + base} for event in trace["traceEvents"] if "dur" in event)


def table(attention: Sequence[Launch], ffn: Sequence[Launch]) -> str:
    """The line of the steps that both traces hold."""
    found: list[tuple[float, ...]] = []
    per_step = 0
    for step in attention[SKIP:-SKIP]:
        # FFN's graph may begin before attention's, waiting for it, but ends inside it.
        other = next((launch for launch in ffn if step.start < launch.end < step.end + 100.0), None)
        if other is None:
            continue
        ours, theirs = turns(step)[1::2], turns(other)[0::2]  # receipt to send on both roles
        sends = [turn.before for turn in turns(step)[0::2]]
        if len(theirs) != len(sends) or len(ours) != len(sends) - 1:
            continue
        per_step = len(sends)
        for place, turn in enumerate(ours):
            request = theirs[place].before.end - sends[place].start
            reply = turn.before.end - theirs[place].after.start
            own, other_turn = turn.after.start - turn.before.end, theirs[place].after.start - theirs[place].before.end
            found.append((request, other_turn, theirs[place].kernels, reply, own, turn.kernels))
    if not found:
        return "no steps that both traces hold"
    request, theirs_us, theirs_kernels, reply, own, own_kernels = (
        median(column) for column in zip(*found, strict=True)
    )
    total = (request + theirs_us + reply + own) * per_step / 1e3
    return (
        f"{len(found):9} {request:8.1f} {theirs_us:9.1f} ({theirs_kernels:7.1f}) {reply:7.1f} {own:15.1f}"
        f" ({own_kernels:7.1f})  {total:10.3f}"
    )


def main() -> None:
    """Prints the line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attention", type=Path)
    parser.add_argument("ffn", type=Path)
    options = parser.parse_args()
    print(HEAD, table(load(options.attention), load(options.ffn)), sep="\n")


if __name__ == "__main__":
    main()
