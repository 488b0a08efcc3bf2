"""How many greedy tokens native and split serving agree in on a CPU, over hundreds of prompts of toy checkpoints.

    python -m tools.agreement_cpu [--family mixtral ...] [--prompts 200] [--tokens 24]

Prints a Markdown table, a line per family as it is done; exit code 1 unless all tokens are equal.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tools import toy_checkpoint
from tools.gpu import setups
from tools.gpu.children import Children
from tools.gpu.parity import ask

BATCH = 25
HEADS = ("family", "prompts", "of them equal", "tokens", "of them equal", "different answers", "seconds")


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Random prompts of 4 to 60 tokens."""
    chance = random.Random(seed)
    return [[chance.randrange(2, 256) for _ in range(chance.randint(4, 60))] for _ in range(count)]


def row(family: str, count: int, tokens: int) -> tuple[str, ...]:
    """One line of the table: both engines alive, each asked the same batches."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = toy_checkpoint.make(family, folder / "toy")
        base = setups.eager(setups.common(model, device="cpu", rows=BATCH, tokens=512, length=512, cache=64 << 20))
        with Children(folder) as children:
            native = children.start("native", setups.ENGINE, {"options": base}, None)
            split, _ = setups.split(children, "split", base, base, "cpu")
            children.ready(setups.READY_S)
            given = prompts(count)
            batches = [given[at : at + BATCH] for at in range(0, count, BATCH)]
            expected, found = ([t for batch in batches for t in ask(each, batch, tokens)] for each in (native, split))
    pairs = list(zip(expected, found, strict=True))
    same = sum(a == b for one, other in pairs for a, b in zip(one, other, strict=True))
    figures = (count, sum(one == other for one, other in pairs), sum(map(len, expected)), same,
               len(set(map(tuple, expected))), round(time.monotonic() - started))  # fmt: skip
    return (family, *map(str, figures))


def main() -> int:
    """Prints the table."""
    runnable = toy_checkpoint.runnable()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", nargs="+", choices=runnable, default=runnable)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=24)
    options = parser.parse_args()
    right = True
    for cells in (HEADS, ("---",) * len(HEADS)):
        print(f"| {' | '.join(cells)} |", flush=True)
    for family in options.family:
        cells = row(family, options.prompts, options.tokens)
        print(f"| {' | '.join(cells)} |", flush=True)
        right = right and cells[1] == cells[2]
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
