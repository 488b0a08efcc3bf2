"""One exchange between two processes per transport and size, beside what the same rows take over less in the same run.

    python bench_hop.py [--over shm tcp gloo unix bare] [--rounds 2000] [--turns 1] [--sizes 8x128 64x1024 ...]

One way is half a round trip; with two processors or more each process has its own, as engines have. With several turns
all transports take theirs one after the other, again and again, so that a host that changes its speed does it to all;
shown is the median of the turns.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import socket
import time
from multiprocessing.synchronize import Event
from statistics import median

from baselines import BASELINES, round_trips

from afd_connectors import Connector, Facts, Layout, Mode, Role, Settings, Shape, Step, resolve

SIZES = ("1x128", "8x128", "1x2048", "8x2048", "64x2048", "256x2048", "512x4096")


def connector(name: str, role: Role, port: int, rows: int, hidden: int) -> Connector:
    """One rank of a 1A1F layout on this host."""
    shape = Shape(rows, hidden, "bfloat16", layers=1_000_000)
    facts = Facts("bench", "bench", "bench", "bfloat16", hidden, shape.layers, 0, "ffn", 1, (), 1, 1)
    return resolve(name, "cpu")(Layout(role, 0, 1, 1), shape, facts, Settings(port=port, join_timeout_s=60))


def serve(name: str, port: int, rows: int, hidden: int, done: Event) -> None:
    """The FFN process: answers with what it got, so that only the hop is measured."""
    pin(1)
    ffn = connector(name, "ffn", port, rows, hidden).open_ffn()
    while not done.is_set():
        work = ffn.recv(wait_s=0.2)
        if work is not None:
            ffn.send(work, work.hidden)
    ffn.close()


def exchanges(name: str, rows: int, hidden: int, rounds: int) -> list[float]:
    """Round trips of a connector in microseconds, in order."""
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
    for layer in range(rounds):
        start = time.perf_counter_ns()
        attention.send(step, layer, hidden_states)
        attention.recv(step, layer, out)
        times.append((time.perf_counter_ns() - start) / 1000)
    if not torch.equal(out, hidden_states):
        raise SystemExit("the rows that came back differ from those that were sent")
    attention.close()
    done.set()
    process.join(10)
    return times


def one_way(name: str, rows: int, hidden: int, rounds: int) -> tuple[float, float]:
    """p50 and p99 in microseconds, after a tenth of the rounds to get warm."""
    warm = rounds // 10
    if name in BASELINES:
        times = round_trips(name, rows, hidden, rounds + warm, pin)
    else:
        times = exchanges(name, rows, hidden, rounds + warm)
    times = sorted(times[warm:])
    return times[len(times) // 2] / 2, times[len(times) * 99 // 100] / 2


def pin(place: int) -> None:
    """Keeps this process on its own processor, where there are enough."""
    cores = range(os.cpu_count() or 1)
    if len(cores) > 1:
        os.sched_setaffinity(0, {place % len(cores)})


_SIZE = re.compile(r"[1-9][0-9]{0,5}x[1-9][0-9]{0,5}")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--over", nargs="+", default=["shm", "tcp", *BASELINES])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="rows x width, such as 16x7168")
    arguments = parser.parse_args()
    if min(arguments.rounds, arguments.turns) < 1:
        parser.error(f"expected at least 1 of rounds and turns, found {arguments.rounds} and {arguments.turns}")
    if wrong := [size for size in arguments.sizes if not _SIZE.fullmatch(size)]:
        parser.error(f"argument --sizes: expected rows x width such as 16x7168, found {wrong[0]!r}")
    pin(0)
    print("| bf16 rows x hidden | bytes | over | one way p50 us | one way p99 us |")
    print("|---|---|---|---|---|")
    for size in arguments.sizes:
        rows, hidden = (int(part) for part in size.split("x"))
        turns = [
            [one_way(name, rows, hidden, arguments.rounds) for name in arguments.over] for _ in range(arguments.turns)
        ]
        for name, found in zip(arguments.over, zip(*turns, strict=True), strict=True):
            p50, p99 = (median(turn[part] for turn in found) for part in (0, 1))
            print(f"| {size} | {rows * hidden * 2} | {name} | {p50:.1f} | {p99:.1f} |", flush=True)


if __name__ == "__main__":
    main()
