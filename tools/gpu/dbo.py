"""Dual-batch overlap on two devices, all engines started at once: agreement with native, then decode steps.

    python -m tools.gpu.dbo [--rows 128 256 512] [--rounds 3] [--prompt 16] [--steps] [--ready SECONDS] [--json FILE]

--prompt: tokens that each request has before the steps that are timed; --steps: nothing but the steps.

Exit code 1 when overlap did not take place, gave garbage, or an engine failed, of which the end of the log comes last.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tools.gpu import parity, setups, step_file, step_overlap
from tools.gpu.children import Children, Failed
from tools.gpu.engine import DUMP
from tools.options import positive

LAST = 40


def run(sizes: Sequence[int], rounds: int, prompt: int, ready_s: float, file: Path | None, toy: bool) -> bool:
    """Whether overlap took place and gave no garbage."""
    folder = setups.logs("dbo")
    os.environ.setdefault(DUMP, f"{ready_s - 5:g}")  # an engine that hangs at start-up then says where
    with Children(folder) as children:
        started = time.monotonic()
        toys = parity.start_overlap(children, folder) if toy else {}
        steps = step_overlap.start(children, sizes, prompt)
        children.ready(ready_s)
        print(f"{len(children.all)} engines ready in {time.monotonic() - started:.0f} s", flush=True)
        right = not toy or parity.report_overlap(toys)
        found = step_overlap.table(steps, sizes, rounds, prompt)
        if file is not None:
            step_file.write(file, "v2-lite", found)
    return right


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=positive, default=[128, 256, 512])
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--prompt", type=positive, default=step_overlap.PROMPT)
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--ready", type=float, default=110.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    try:
        right = run(
            sorted(options.rows), options.rounds, options.prompt, options.ready, options.json, not options.steps
        )
    except Failed as error:
        lines = str(error).splitlines()
        print("\n".join([f"FAILED: {lines[0]}", *lines[1:][-LAST:]]), flush=True)
        sys.exit(1)
    print("dbo: right" if right else "dbo: WRONG", flush=True)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
