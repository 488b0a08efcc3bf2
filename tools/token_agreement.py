"""How many greedy tokens native and split serving agree in, over hundreds of prompts of toy checkpoints, eagerly.

    python -m tools.token_agreement [--family mixtral ...] [--prompts 200] [--tokens 24] [--device cpu|cuda]

Prints a Markdown table, a line per family as it is done; exit code 1 unless all tokens are equal. On CUDA, some
families run that a CPU cannot serve; `AFD_GPU_DEVICES=0,0` and `--connector nvlink` need one device only.
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
from tools.options import positive

BATCH = 25
HEADS = ("family", "prompts", "of them equal", "tokens", "of them equal", "different answers", "seconds")


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Random prompts of 4 to 60 tokens."""
    chance = random.Random(seed)
    return [[chance.randrange(2, 256) for _ in range(chance.randint(4, 60))] for _ in range(count)]


def row(family: str, count: int, tokens: int, device: str) -> tuple[str, ...]:
    """One line of the table: both engines alive, each asked the same batches."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = toy_checkpoint.make(family, folder / "toy")
        base = setups.eager(setups.common(model, device=device, rows=BATCH, tokens=512, length=512, cache=64 << 20))
        if toy_checkpoint.needs_trust(model):
            base["trust_remote_code"] = True
        with Children(folder) as children:
            native = children.start("native", setups.ENGINE, {"options": base}, 0 if device == "cuda" else None)
            split, _ = setups.split(children, "split", base, base, device)
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", nargs="+", choices=sorted(toy_checkpoint.FAMILIES), help="all that a CPU serves")
    parser.add_argument("--prompts", type=positive, default=200)
    parser.add_argument("--tokens", type=positive, default=24)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    setups.connector_option(parser)
    options = parser.parse_args()
    right = True
    for cells in (HEADS, ("---",) * len(HEADS)):
        print(f"| {' | '.join(cells)} |", flush=True)
    for family in options.family or toy_checkpoint.runnable():
        cells = row(family, options.prompts, options.tokens, options.device)
        print(f"| {' | '.join(cells)} |", flush=True)
        right = right and cells[1] == cells[2]
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
