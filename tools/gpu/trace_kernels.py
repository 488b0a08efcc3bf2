"""Which kernels a decode step runs, native and split: how often, how long, and how long the device is idle before each.

    python -m tools.gpu.trace_kernels NAME=TRACE.json.gz...

Per kernel the times it runs in a step, microseconds a step that it runs, and microseconds a step that nothing runs
before it; medians over the steps. First those of which the traces differ most.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from tools.gpu.trace_hops import load
from tools.gpu.trace_read import SKIP, Launch

MOST, WIDTH = 24, 44
_PREFIX = re.compile(r"^(void |at::native::|\(anonymous namespace\)::|vllm::)+")
#: Of one kernel and trace: how often a step runs it, and the microseconds that it runs and that come idle before it.
Share = tuple[float, float, float]


def short(name: str) -> str:
    """A kernel's name without its namespaces and most of its parameters."""
    return _PREFIX.sub("", name).replace("(anonymous namespace)::", "").replace("at::native::", "")[:WIDTH]


def shares(found: Sequence[Launch]) -> dict[str, Share]:
    """By kernel, medians over the steps."""
    steps = found[SKIP:-SKIP]
    rows: list[dict[str, list[float]]] = []
    for step in steps:
        row: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        until = step.start
        for kernel in step.kernels:
            share = row[short(kernel.name)]
            share[0] += 1
            share[1] += kernel.end - kernel.start
            share[2] += max(0.0, kernel.start - until)
            until = max(until, kernel.end)
        rows.append(row)
    names = {name for row in rows for name in row}
    nothing = [0.0, 0.0, 0.0]
    return {
        name: (
            median(row.get(name, nothing)[0] for row in rows),
            median(row.get(name, nothing)[1] for row in rows),
            median(row.get(name, nothing)[2] for row in rows),
        )
        for name in names
    }


def table(traces: Mapping[str, Path], most: int = MOST) -> str:
    """The lines; the first trace is what the others are compared with, taken together."""
    found = {name: shares(load(path)) for name, path in traces.items()}
    first, *others = found
    names = {name for each in found.values() for name in each}

    def gap(name: str) -> float:
        return sum(sum(found[each].get(name, (0, 0, 0))[1:]) for each in others) - sum(
            found[first].get(name, (0, 0, 0))[1:]
        )

    ranked = sorted(names, key=lambda name: -abs(gap(name)))
    lines = [f"{'kernel: count, us busy, us idle before':{WIDTH}}" + "".join(f" | {name:>22}" for name in found)]
    for name in ranked[:most]:
        cells = (found[each].get(name, (0.0, 0.0, 0.0)) for each in found)
        lines.append(f"{name:{WIDTH}}" + "".join(f" | {c:6.0f} {busy:8.1f} {idle:6.1f}" for c, busy, idle in cells))
    totals = ([sum(share[place] for share in each.values()) for place in range(3)] for each in found.values())
    lines.append(f"{'all':{WIDTH}}" + "".join(f" | {c:6.0f} {busy:8.1f} {idle:6.1f}" for c, busy, idle in totals))
    return "\n".join(lines)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", metavar="NAME=TRACE")
    given = (each.split("=", 1) for each in parser.parse_args().traces)
    print(table({name: Path(path) for name, path in given}))


if __name__ == "__main__":
    main()
