"""Kills and stops the FFN process under a port's graphs, without an engine: every step must come back bit for bit.

    python -m tools.gpu.kill_port [--connector nvlink] [--rows 128 1 2048] [--hidden 7168]

A graph of 20 exchanges per size is replayed in turn. The FFN process stands still for a second (SIGSTOP), then for
longer than timeout_s; its port is closed in the middle of steps from another thread and opened again, five times; then
it is killed and started again twice. Prints when that was noticed, how long joining again took, and when the next good
step was there.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence

from tools.gpu import setups
from tools.gpu.children import Child, Children, Failed
from tools.options import positive

LIMIT_S, RUN_S, TRIPS, STOPS = 60.0, 38.0, 20, 5


def endure(children: Children, connector: str, rows: Sequence[int], hidden: int) -> bool:
    """Whether all steps were right and graphs were as lasting as the connector says."""
    job = {"connector": connector, "port": setups.free_port(), "sizes": list(rows), "hidden": hidden, "trips": TRIPS}

    def serve() -> Child:
        ffn = children.start(f"kill-port-{len(children.all)}", "tools.gpu.hop", {"role": "ffn", **job}, 1)
        ffn.answer(LIMIT_S)
        ffn.ask({"op": "serve"}, LIMIT_S)
        return ffn

    attention = children.start("kill-port-attention", "tools.gpu.hop", {"role": "attention", **job}, 0)
    ffn = serve()
    attention.answer(LIMIT_S)
    attention.begin({"op": "endure", "seconds": RUN_S})
    time.sleep(2.0)
    for stopped_s in (1.0, 5.0):
        ffn.process.send_signal(signal.SIGSTOP)
        time.sleep(stopped_s)
        ffn.process.send_signal(signal.SIGCONT)
        time.sleep(1.5)
    for _ in range(STOPS):
        assert ffn.ask({"op": "stop"}, LIMIT_S)["stopped"]
        ffn.ask({"op": "serve"}, LIMIT_S)
        time.sleep(0.7)
    for _ in range(2):
        ffn.kill()
        ffn = serve()
        time.sleep(1.0)
    told = attention.answer(LIMIT_S)
    losses = told.pop("losses")
    print(f"{connector}: {told}", flush=True)
    assert isinstance(losses, list)
    for loss in losses:
        print(f"  lost: {loss}", flush=True)
    print(f"  FFN steps: {ffn.ask({'op': 'figures'}, LIMIT_S)}", flush=True)
    lasting = connector != "nvlink" or told["graphs"] == len(rows)  # one for each size, never captured again
    return bool(told["right"]) and len(losses) >= 3 + STOPS and lasting


def main() -> None:
    """Exit code 0 when all steps were right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connector", default="nvlink")
    parser.add_argument("--rows", nargs="+", type=positive, default=[128, 1, 2048])
    parser.add_argument("--hidden", type=positive, default=7168)
    options = parser.parse_args()
    try:
        with Children(setups.logs("kill-port")) as children:
            right = endure(children, options.connector, options.rows, options.hidden)
    except Failed as error:
        print(f"FAILED: {error}", flush=True)
        right = False
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
