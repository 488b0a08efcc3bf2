"""Kills the FFN process in the middle of generation: attention must end in time, with one sentence and no token.

    python -m tools.gpu.kill_ffn [--modes eager graph]

Prints, per mode, seconds from the kill to attention's end, and the sentence. Exit code 1 when either is missing.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence

from tools.gpu import setups
from tools.gpu.children import Child, Children, Failed
from tools.gpu.parity import ANSWER_S, SIZES, prompts

LIMIT_S = 30.0
SENTENCES = ("what this step computed is void", "restart this server")


def run(modes: Sequence[str]) -> bool:
    """Whether every mode ended as it should."""
    folder = setups.logs("kill-ffn")
    model = setups.toy(folder / "toy", "cuda")
    base = setups.common(model, device="cuda", rows=128, tokens=8192, length=4096, cache=2 << 30)
    eager = setups.eager(base)
    right = True
    for mode in modes:
        with Children(folder / mode) as children:
            options = eager if mode == "eager" else setups.graphs(base, SIZES, native=False)
            attention, ffn = setups.split(children, mode, options, eager, "cuda")
            children.ready(setups.READY_S)
            attention.ask({"op": "tokens", "prompts": prompts(16), "count": 32}, ANSWER_S)
            killed: list[float] = []

            def kill(killed: list[float] = killed, ffn: Child = ffn) -> None:
                killed.append(time.monotonic())
                ffn.kill()

            threading.Timer(1.5, kill).start()
            try:
                attention.ask({"op": "tokens", "prompts": prompts(16), "count": 3900}, LIMIT_S)
                print(f"{mode}: all tokens came before the kill; nothing was tried", flush=True)
                right = False
            except Failed as failed:
                spent = time.monotonic() - killed[0] if killed else -1.0
                told = [line for line in str(failed).splitlines() if any(part in line for part in SENTENCES)]
                print(f"{mode}: ended {spent:.2f} s after the kill: {told[-1].strip() if told else failed}", flush=True)
                right = right and bool(told) and 0 <= spent < LIMIT_S
    return right


def main() -> None:
    """Exit code 0 when every mode ended as it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", choices=("eager", "graph"), default=["eager", "graph"])
    sys.exit(0 if run(parser.parse_args().modes) else 1)


if __name__ == "__main__":
    main()
