"""Measures one exchange between two processes: p50 and p99 per size, one way being half a round trip.

python bench_hop.py [--connector tcp] [--rounds 2000] [--sizes 8x128 64x1024 ...]
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import time
from multiprocessing.synchronize import Event

from afd_connectors import Connector, Facts, Layout, Mode, Role, Settings, Shape, Step, resolve

SIZES = ("1x128", "8x128", "8x2048", "64x2048", "256x2048", "512x4096")


def connector(name: str, role: Role, port: int, rows: int, hidden: int) -> Connector:
    """One rank of a 1A1F layout on this host."""
    shape = Shape(rows, hidden, "bfloat16", layers=1_000_000)
    facts = Facts("bench", "bench", "bench", "bfloat16", hidden, shape.layers, 0, "ffn", 1, (), 1, 1)
    return resolve(name, "cpu")(Layout(role, 0, 1, 1), shape, facts, Settings(port=port, join_timeout_s=60))


def serve(name: str, port: int, rows: int, hidden: int, done: Event) -> None:
    """The FFN process: answers with what it got, so that only the hop is measured."""
    ffn = connector(name, "ffn", port, rows, hidden).open_ffn()
    while not done.is_set():
        work = ffn.recv(wait_s=0.2)
        if work is not None:
            ffn.send(work, work.hidden)
    ffn.close()


def measure(name: str, rows: int, hidden: int, rounds: int) -> list[float]:
    """Round trips in microseconds, sorted, after a tenth of them as warm-up."""
    import torch

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    context = multiprocessing.get_context("spawn")
    done = context.Event()
    process = context.Process(target=serve, args=(name, port, rows, hidden, done), daemon=True)
    process.start()
    attention = connector(name, "attention", port, rows, hidden).open_attention()
    hidden_states = torch.randn(rows, hidden).to(torch.bfloat16)
    out = torch.empty_like(hidden_states)
    step = Step(1, Mode.EAGER, (rows,))
    attention.begin(step)
    times = []
    for layer in range(rounds + rounds // 10):
        start = time.perf_counter_ns()
        attention.send(step, layer, hidden_states)
        attention.recv(step, layer, out)
        times.append((time.perf_counter_ns() - start) / 1000)
    if not torch.equal(out, hidden_states):
        raise SystemExit("the rows that came back differ from those that were sent")
    attention.close()
    done.set()
    process.join(10)
    return sorted(times[rounds // 10 :])


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connector", default="tcp")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--sizes", nargs="+", default=SIZES)
    arguments = parser.parse_args()
    name = arguments.connector
    print(f"| {name}, bf16 rows x hidden | bytes | one way p50 us | one way p99 us | round trip mean us |")
    print("|---|---|---|---|---|")
    for size in arguments.sizes:
        rows, hidden = (int(part) for part in size.split("x"))
        times = measure(arguments.connector, rows, hidden, arguments.rounds)
        p50, p99 = times[len(times) // 2] / 2, times[len(times) * 99 // 100] / 2
        print(f"| {size} | {rows * hidden * 2} | {p50:.1f} | {p99:.1f} | {statistics.fmean(times):.1f} |")


if __name__ == "__main__":
    main()
