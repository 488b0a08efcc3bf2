"""One-sided hops beside NCCL in the same run: rows there and back between two devices, and what a dead peer does.

    python -m tools.gpu.bench_hop_nvlink [--rows 1 16 128 512 2048 8192] [--hidden 2048 4096 7168] [--parts ...]

Microseconds one way (half of a round trip) inside graphs, p50 and p99 over replays; the attention side copies what it
receives out of the slot, the FFN side uses it where it lies if it can. Parts: table; sweep: the ways a message can
travel; without-link: the same between two streams of one process; failure: SIGSTOP, kill -9, a process started anew
under the same graph; beside: a matrix product beside a wait; stress: other bits in each of many replays.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from afd_connectors.transports.nvlink.sizes import UNIT, UNITS_BYTES, Plan, chunked, in_units, plan_of
from tools.gpu import setups
from tools.gpu.children import Children
from tools.gpu.hop_failure import failure
from tools.gpu.hop_pair import LIMIT_S, Pair, bad, gbs, named, pairs
from tools.gpu.in_turn import in_turn
from tools.options import positive

MOST_RESIDENT = 128
STRESS_S, STRESS_TIMES, STRESS_BYTES = 60.0, 20_000, 20 << 30  # a part of stress: seconds, replays, bytes one way
PARTS = ("table", "sweep", "without-link", "failure", "stress", "beside")


def table(pair: Pair, rows: Sequence[int], hidden: Sequence[int]) -> bool:
    """Beside NCCL; whether all data was right."""
    found = pair.ffn.ask({"op": "ident"}, LIMIT_S)
    pair.both({"op": "join", "ident": found["ident"]})
    print(
        f"NCCL {found['version']}; us one way: p50 / p99\nhidden  rows      nccl p50/p99   nvlink p50/p99   GB/s  way"
    )
    right = True
    for width in hidden:
        for count in rows:
            size = count * width * 2
            trips, rounds = pair.trips(size)
            job = {"rows": count, "hidden": width, "trips": trips, "rounds": rounds}
            theirs, _ = pair.both({"op": "nccl", **job})
            ours, _ = pair.both({"op": "hop", **job})
            right = right and bool(ours["right"])
            way = f"{named(plan_of(size))}{bad(ours)}"
            print(f"{width:6} {count:5} {pairs(theirs)} {pairs(ours)} {gbs(size, ours)}  {way}", flush=True)
    return right


def ways(size: int) -> Iterator[tuple[Plan, bool, bool]]:
    """(plan, early, land) that are worth a try for a size."""
    for most, put, wait in ((64, 64, 64), (128, 64, 64), (128, 128, 64), (256, 128, 64), (1024, 128, 64)):
        yield chunked(size, most, put, wait), True, True
    if size <= UNITS_BYTES:
        yield in_units(size), True, True
    usual = plan_of(size)
    yield usual, True, True
    yield usual, False, True
    yield usual, True, False
    yield usual._replace(apart=True), True, True


def sweep(pair: Pair, rows: Sequence[int], hidden: int) -> None:
    """The ways a message can travel."""
    for count in rows:
        size = count * hidden * 2
        trips, rounds = pair.trips(size)
        for plan, early, land in ways(size):
            job = {"op": "hop", "rows": count, "hidden": hidden, "trips": trips, "rounds": rounds}
            ours, theirs = pair.both({**job, "plan": list(plan), "early": early, "land": land})
            failed = ours.get("failed") or theirs.get("failed")
            if failed:
                print(f"{count:5} FAILED {failed} {named(plan)} early {early}", flush=True)
                pair.both({"op": "meet"})
                continue
            marks = ("" if early else " not early") + ("" if land else " copied")
            print(f"{count:5} {pairs(ours)} {gbs(size, ours)}  {named(plan)}{marks}{bad(ours)}", flush=True)


def without_link(pair: Pair, rows: Sequence[int], hidden: int) -> None:
    """Ways to travel between two streams of one process: launches, flags and copies, without the link."""
    for count in rows:
        size = count * hidden * 2
        for plan, early, land in ways(size):
            if land and plan.put + plan.wait <= MOST_RESIDENT:
                job = {"op": "alone", "rows": count, "hidden": hidden, "trips": 20, "rounds": 60}
                found = pair.attention.ask({**job, "plan": list(plan), "early": early}, LIMIT_S)
                marks = f"{named(plan)}{'' if early else ' not early'}"
                print(f"{count:5} {pairs(found)}  {marks}{found.get('failed') or bad(found)}", flush=True)


def stress(pair: Pair, rows: Sequence[int], hidden: int) -> bool:
    """Whether all bits came back in many replays, whatever they were."""
    right = True
    for count in rows:
        pair.both({"op": "keep", "rows": count, "hidden": hidden, "trips": 2})
        size = count * hidden * 2
        times = max(20, min(STRESS_TIMES, STRESS_BYTES // size))
        began = time.monotonic()
        found = pair.both({"op": "stress", "times": times}, STRESS_S)
        ones, _ = pair.both({"op": "ones"})
        right = right and all(one["wrong"] == 0 and one["error"] == [0, 0, 0] for one in (found[0], ones))
        units = times * 4 * size // UNIT
        print(
            f"{count:5} rows, {times} replays, {units} units one way or the other in {time.monotonic() - began:.1f} s, "
            f"words wrong {found[0]['wrong']}, not NaN of all ones {ones['wrong']}, errors {found[0]['error']}",
            flush=True,
        )
    return right


def beside(pair: Pair) -> None:
    """A matrix product beside waits of few and many blocks."""
    for blocks, apart in ((1, False), (16, False), (32, False), (64, False), (64, True)):
        found = pair.attention.ask({"op": "beside", "blocks": blocks, "apart": apart}, LIMIT_S)["ms"]
        assert isinstance(found, list)
        what = f"1 block, {blocks} that copy later" if apart else f"{blocks} blocks"
        print(f"4096^3 bf16 alone {found[0]:.3f} ms, beside a wait of {what} {found[1]:.3f} ms", flush=True)


def main() -> None:
    """Exit code 0 when all data was right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=positive, default=[1, 16, 128, 512, 2048, 8192])
    parser.add_argument("--hidden", nargs="+", type=positive, default=[2048, 4096, 7168])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["table", "failure", "beside"])
    parser.add_argument("--quick", action="store_true", help="few replays, for right data and not for speed")
    options = parser.parse_args()
    rows, widest = options.rows, max(options.hidden)
    with Children(setups.logs("bench-hop-nvlink")) as children:
        pair = Pair(children, max(rows), widest, "tools.gpu.hop_nvlink", quick=options.quick)
        parts: dict[str, Callable[[], bool | None]] = {
            "table": lambda: table(pair, rows, options.hidden),
            "sweep": lambda: sweep(pair, rows, widest),
            "without-link": lambda: without_link(pair, rows, widest),
            "failure": lambda: failure(pair, widest),
            "stress": lambda: stress(pair, rows, widest),
            "beside": lambda: beside(pair),
        }
        right = in_turn(parts, options.parts)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
