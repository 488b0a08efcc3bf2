"""What profiler traces of decode steps say: where the device's time goes, and how far ahead the host launches.

    python -m tools.gpu.trace_read TRACE.json.gz...

A step is what one graph launch ran. Medians over the steps, in ms: period between the starts of two steps, span of
the graph, kernels in it, moved (time in transfers, which includes the wait for the other role), idle (no kernel),
between (from the end of one graph to the start of the next), launch (the host's call), ahead (from the end of that
call to the start of the graph; near zero or less: the device waits for the host). Tracing itself costs some time.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

FEWEST = 100  # kernels of a graph of a whole step
SKIP = 3  # steps at either end, in which the rows are not all there
HEAD = "trace              steps  period    span  kernels   moved    idle  nodes  between  launch   ahead"


@dataclass(frozen=True, slots=True)
class Span:
    """A kernel or a call, in microseconds of the host's clock."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Launch:
    """One graph: its kernels by start, and the call that launched it, where it was seen."""

    kernels: tuple[Span, ...]
    call: Span | None

    @property
    def start(self) -> float:
        """Of the first kernel."""
        return self.kernels[0].start

    @property
    def end(self) -> float:
        """Of the last kernel."""
        return max(kernel.end for kernel in self.kernels)


def launches(events: Iterable[Mapping[str, object]]) -> list[Launch]:
    """All graphs with at least FEWEST kernels, by start."""
    kernels: dict[int, list[Span]] = defaultdict(list)
    calls: dict[int, Span] = {}
    for event in events:
        arguments = event.get("args")
        if event.get("ph") != "X" or not isinstance(arguments, dict) or "correlation" not in arguments:
            continue
        number, start = int(arguments["correlation"]), float(str(event["ts"]))
        span = Span(str(event["name"]), start, start + float(str(event["dur"])))
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            kernels[number].append(span)
        elif "GraphLaunch" in span.name:
            calls[number] = span
    found = [
        Launch(tuple(sorted(spans, key=lambda span: span.start)), calls.get(number))
        for number, spans in kernels.items()
        if len(spans) >= FEWEST
    ]
    return sorted(found, key=lambda launch: launch.start)


def busy(spans: Sequence[Span]) -> float:
    """Time in which at least one of them runs; they are ordered by start."""
    total, until = 0.0, 0.0
    for span in spans:
        total += max(0.0, span.end - max(span.start, until))
        until = max(until, span.end)
    return total


def summary(found: Sequence[Launch]) -> dict[str, float]:
    """See the module; empty when there are too few steps."""
    steps = found[SKIP:-SKIP]
    if len(steps) < 2:
        return {}
    rows = []
    for one, after in pairwise(steps):
        moved = [kernel for kernel in one.kernels if "nccl" in kernel.name.lower()]
        kept = [kernel for kernel in one.kernels if "nccl" not in kernel.name.lower()]
        row = {
            "period": after.start - one.start,
            "span": one.end - one.start,
            "kernels": busy(kept),
            "moved": busy(moved),
            "idle": one.end - one.start - busy(one.kernels),
            "between": after.start - one.end,
        }
        if one.call is not None:
            row |= {"launch": one.call.end - one.call.start, "ahead": one.start - one.call.end}
        rows.append({key: value / 1e3 for key, value in row.items()} | {"nodes": float(len(one.kernels))})
    return {key: median(row[key] for row in rows if key in row) for key in rows[0]} | {"steps": float(len(rows))}


def line(path: Path) -> str:
    """One line of the table."""
    with gzip.open(path, "rt") as stream:
        told = summary(launches(json.load(stream)["traceEvents"]))
    if not told:
        return f"{path.name:18} no steps found"
    nothing = float("nan")
    return (
        f"{path.name:18} {told['steps']:5.0f} {told['period']:7.3f} {told['span']:7.3f} {told['kernels']:8.3f}"
        f" {told['moved']:7.3f} {told['idle']:7.3f} {told['nodes']:6.0f} {told['between']:8.3f}"
        f" {told.get('launch', nothing):7.3f} {told.get('ahead', nothing):7.3f}"
    )


def main() -> None:
    """Prints one line per trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    print(HEAD, *(line(path) for path in parser.parse_args().traces), sep="\n")


if __name__ == "__main__":
    main()
