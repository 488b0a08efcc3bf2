"""Rows as fp8 on the wire beside rows as they are, in the same run: microseconds, errors, right data, failures.

    python -m tools.gpu.bench_hop_fp8 [--rows 1 16 128 512 2048 8192] [--hidden 7168] [--parts ...]

Parts: table: microseconds one way (half of a round trip) inside graphs, p50 and p99 over replays, of rows as they are,
which the FFN side uses where they arrive, and of fp8, which both sides put where they are wanted; sweep: the ways a
message can travel; error: what arrives beside the bf16 that was sent; check: bit for bit as the reference, of odd
widths, values and dtypes; failure: as of bench_hop_nvlink.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence

from afd_connectors.transports.nvlink.fp8 import chunked, plan_of
from afd_connectors.transports.nvlink.sizes import Plan
from tools.gpu import setups
from tools.gpu.children import Children
from tools.gpu.hop_failure import failure
from tools.gpu.hop_pair import Pair, bad, named, pairs
from tools.gpu.in_turn import in_turn
from tools.options import positive

SHAPES = ((1, 8), (3, 24), (129, 72), (5, 2056), (64, 8200), (33, 16384), (1500, 4104), (8192, 7168))
MOST = 8192, 16384
PARTS = ("table", "sweep", "error", "check", "failure")


def table(pair: Pair, rows: Sequence[int], hidden: int) -> bool:
    """Whether all data was right."""
    right = True
    print("rows   bf16 p50/p99       fp8 p50/p99      bf16/fp8")
    for count in rows:
        trips, rounds = pair.trips(count * hidden * 2)
        job = {"rows": count, "hidden": hidden, "trips": trips, "rounds": rounds}
        plain, _ = pair.both({"op": "model", **job})
        packed, _ = pair.both({"op": "hop", **job})
        right = right and bool(plain["right"]) and bool(packed["right"])
        ratio = float(str(plain["p50"])) / float(str(packed["p50"]))
        print(f"{count:5} {pairs(plain)}  {pairs(packed)}   {ratio:5.2f}{bad(plain)}{bad(packed)}", flush=True)
    return right


def ways(rows: int, hidden: int) -> Iterator[Plan]:
    """Plans that are worth a try for so many rows."""
    usual = plan_of(rows, 2 * hidden)
    yield usual
    if usual.units:
        yield from (usual._replace(put=blocks, wait=blocks) for blocks in (32, 64, 256) if blocks <= rows)
    for most in (32, 64, 128, 256, 512, 1024):
        plan = chunked(rows, most)
        if plan.chunks > most // 2:
            yield plan


def sweep(pair: Pair, rows: Sequence[int], hidden: int) -> None:
    """The ways a message can travel."""
    for count in rows:
        trips, rounds = pair.trips(count * hidden)
        for plan in dict.fromkeys(ways(count, hidden)):
            job = {"op": "hop", "rows": count, "hidden": hidden, "trips": trips, "rounds": rounds}
            ours, _ = pair.both({**job, "plan": list(plan)})
            print(f"{count:5} {pairs(ours)}  {named(plan)}{bad(ours)}", flush=True)


def error(pair: Pair, hidden: int) -> bool:
    """Prints relative errors; whether all arrived as the reference says."""
    right = True
    print("rows of        element mean / max   of the row's largest, max   row error mean / max  made zero")
    for kind in ("normal", "heavy", "outliers"):
        _, found = pair.both({"op": "arrive", "rows": 2048, "hidden": hidden, "kind": kind, "dtype": "bfloat16"})
        right = right and bool(found["right"])
        print(
            f"{kind:12} {found['mean']:12.4f} / {found['most']:.4f} {found['most_of_row']:22.4f}"
            f" {found['norm']:21.4f} / {found['most_norm']:.4f} {found['zeroed']:12.5f}"
            f"{'' if found['right'] else '  not as the reference says'}",
            flush=True,
        )
    return right


def check(pair: Pair) -> bool:
    """Whether rows of all kinds arrive bit for bit as the reference says."""
    count = 0
    for rows, width in SHAPES:
        for kind in ("normal", "heavy", "odd"):
            for dtype in ("bfloat16", "float16"):
                usual = chunked(rows, 64)
                for plan in (None, list(usual), list(usual._replace(apart=True))):
                    job = {"op": "arrive", "rows": rows, "hidden": width, "kind": kind, "dtype": dtype, "plan": plan}
                    sent, found = pair.both(job)
                    count += 1
                    if not found.get("right") or sent.get("error") != [0, 0, 0]:
                        print(f"WRONG {job}: {sent} {found}", flush=True)
                        return False
    print(f"{count} messages as the reference says", flush=True)
    return True


def main() -> None:
    """Exit code 0 when all data was right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=positive, default=[1, 16, 128, 512, 2048, 8192])
    parser.add_argument("--hidden", type=positive, default=7168)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["table", "error", "check", "failure"])
    parser.add_argument("--quick", action="store_true", help="few replays, for right data and not for speed")
    options = parser.parse_args()
    rows, hidden = options.rows, options.hidden
    with Children(setups.logs("bench-hop-fp8")) as children:
        pair = Pair(children, max(MOST[0], *rows), max(MOST[1], hidden), "tools.gpu.hop_fp8", quick=options.quick)
        parts: dict[str, Callable[[], bool | None]] = {
            "table": lambda: table(pair, rows, hidden),
            "sweep": lambda: sweep(pair, rows, hidden),
            "error": lambda: error(pair, hidden),
            "check": lambda: check(pair),
            "failure": lambda: failure(pair, hidden),
        }
        right = in_turn(parts, options.parts)
    print(f"fp8: {'all right' if right else 'WRONG'}", flush=True)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
