"""One-sided hops beside NCCL in the same run: rows there and back between two devices, and what a dead peer does.

    python -m tools.gpu.bench_hop_nvlink [--rows 1 16 128 512 2048 8192] [--hidden 2048 4096 7168] [--parts ...]

Microseconds one way (half of a round trip) inside graphs, p50 and p99 over replays; the attention side copies what it
receives out of the slot, the FFN side uses it where it lies if it can. Parts: table; sweep: the ways a message can
travel; without-link: the same between two streams of one process; failure: SIGSTOP, kill -9, a process started anew
under the same graph; beside: a matrix product beside a wait; stress: other bits in each of many replays.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence

from afd_connectors.transports.nvlink.sizes import UNIT, UNITS_BYTES, Plan, chunked, in_units, plan_of
from tools.gpu import setups
from tools.gpu.children import Child, Children, Failed

LIMIT_S, WAIT_S, MOST_RESIDENT = 60.0, 3.0, 128
STRESS_S, STRESS_TIMES, STRESS_BYTES = 60.0, 20_000, 20 << 30  # a part of stress: seconds, replays, bytes one way
QUICK = False  # set where it is about right data alone
Answer = dict[str, object]


class Pair:
    """Both sides, asked at once. module: what each of them runs."""

    def __init__(self, children: Children, rows: int, hidden: int, module: str = "tools.gpu.hop_nvlink") -> None:
        self._children, self._module = children, module
        self._job = {"rows": rows, "hidden": hidden, "limit_s": WAIT_S}
        self._count = 0
        self.ffn = self._start("ffn", 1)
        self.attention = self._start("attention", 0)
        print(f"ready after {self.attention.answer(LIMIT_S)['s']:.2f} s, {self.ffn.answer(LIMIT_S)['s']:.2f} s")
        print(f"met in {self.both({'op': 'meet'})[0]['ms']:.1f} ms", flush=True)

    def replace_ffn(self) -> None:
        """A new FFN process in the place of one that is gone; not met yet."""
        self.ffn = self._start("ffn", 1)
        self.ffn.answer(LIMIT_S)

    def both(self, job: Mapping[str, object], limit_s: float = LIMIT_S) -> tuple[Answer, Answer]:
        """The answers of attention and FFN."""
        self.ffn.begin(job)
        self.attention.begin(job)
        return self.attention.answer(limit_s), self.ffn.answer(limit_s)

    def _start(self, role: str, device: int) -> Child:
        self._count += 1
        job = {"role": role, "name": f"afd-hop-{os.getpid()}", **self._job}
        return self._children.start(f"hop-{role}-{self._count}", self._module, job, device)


def trips_of(size: int) -> tuple[int, int]:
    """(round trips a graph, replays) that take about as long for every size."""
    return (4, 5) if QUICK else (20, 60) if size < 8 << 20 else (4, 30)


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
            trips, rounds = trips_of(size)
            job = {"rows": count, "hidden": width, "trips": trips, "rounds": rounds}
            theirs, _ = pair.both({"op": "nccl", **job})
            ours, _ = pair.both({"op": "hop", **job})
            right = right and bool(ours["right"])
            way = f"{named(plan_of(size))}{bad(ours)}"
            print(f"{width:6} {count:5} {pairs(theirs)} {pairs(ours)} {gbs(size, ours)}  {way}", flush=True)
    return right


def pairs(answer: Answer) -> str:
    """p50 and p99."""
    if "failed" in answer:  # as NCCL does where both sides have one device
        return "       - /     -"
    return f"{answer['p50']:8.1f} /{answer['p99']:6.1f}"


def gbs(size: int, answer: Answer) -> str:
    """Gigabytes a second."""
    return f"{size / float(str(answer['p50'])) / 1e3:6.0f}"


def bad(answer: Answer) -> str:
    """What was wrong, if anything was."""
    return "" if answer["right"] and answer["error"] == [0, 0, 0] else f"  WRONG {answer}"


def named(plan: Plan) -> str:
    """A way to travel, in short."""
    if plan.units:
        return f"units, put {plan.put}, wait {plan.wait}"
    return f"put {plan.put}, {plan.chunks} chunks, wait {plan.wait}{' apart' if plan.apart else ''}"


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
        trips, rounds = trips_of(size)
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


def failure(pair: Pair, hidden: int) -> bool:
    """A peer that stands still, that is stopped in the middle of a step, that dies, that is started anew."""
    job = {"rows": 128, "hidden": hidden, "trips": 20}
    pair.both({"op": "keep", **job})
    print("replay:", pair.both({"op": "again"}))
    pair.attention.begin({"op": "again"})
    time.sleep(0.2)
    pair.ffn.process.send_signal(signal.SIGSTOP)
    pair.ffn.begin({"op": "again"})
    time.sleep(1.0)
    pair.ffn.process.send_signal(signal.SIGCONT)
    print("peer stopped for 1 s:", pair.attention.answer(LIMIT_S), pair.ffn.answer(LIMIT_S), flush=True)
    print("peer gone, host ends the wait:", pair.attention.ask({"op": "end"}, LIMIT_S), flush=True)
    pair.ffn.kill()
    pair.replace_ffn()
    print("new process, met again:", pair.both({"op": "meet"})[0])
    pair.ffn.ask({"op": "keep", **job}, LIMIT_S)
    first = pair.both({"op": "again"})[0]
    print("the same attention graph:", first, flush=True)
    silent = mid_step(pair)
    pair.both({"op": "meet"})
    met = pair.both({"op": "again"})[0]
    print("met again:", met, flush=True)
    last = killed_under_load(pair)
    pair.replace_ffn()
    pair.both({"op": "meet"})
    pair.ffn.ask({"op": "keep", **job}, LIMIT_S)
    second = pair.both({"op": "again"})[0]
    print("new process, the same attention graph:", second, flush=True)
    return bool(
        first["right"] and silent and met["right"] and second["right"] and last["sound"] and last["error"] != [0, 0, 0]
    )


def mid_step(pair: Pair) -> bool:
    """The FFN side waits in its graph and is stopped by its host: attention has to get an error, never an answer."""
    ended = pair.ffn.ask({"op": "end"}, LIMIT_S)
    last = pair.attention.ask({"op": "again"}, LIMIT_S)
    print("FFN stopped in the middle of a step:", ended, last, flush=True)
    return ended["error"] != [0, 0, 0] and last["error"] != [0, 0, 0] and not last["touched"]


def killed_under_load(pair: Pair) -> Answer:
    """What attention saw of an FFN process that ended."""
    pair.ffn.begin({"op": "again", "times": 100000})
    pair.attention.begin({"op": "again", "times": 100000})
    time.sleep(1.0)
    killed = time.perf_counter()
    pair.ffn.kill()
    print(f"killed after 1 s of load, limit {WAIT_S:g} s:", end=" ", flush=True)
    last = pair.attention.answer(LIMIT_S)
    print(f"stream went on {time.perf_counter() - killed:.2f} s after the kill:", last, flush=True)
    return last


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
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 16, 128, 512, 2048, 8192])
    parser.add_argument("--hidden", nargs="+", type=int, default=[2048, 4096, 7168])
    parser.add_argument("--parts", nargs="+", default=["table", "failure", "beside"])
    parser.add_argument("--quick", action="store_true", help="few replays, for right data and not for speed")
    options = parser.parse_args()
    globals()["QUICK"] = options.quick
    widest, right = max(options.hidden), True
    with Children(setups.logs("bench-hop-nvlink")) as children:
        pair = Pair(children, max(options.rows), widest)
        for part in options.parts:
            print(f"--- {part}", flush=True)
            try:
                if part == "table":
                    right = table(pair, options.rows, options.hidden) and right
                elif part == "sweep":
                    sweep(pair, options.rows, widest)
                elif part == "without-link":
                    without_link(pair, options.rows, widest)
                elif part == "failure":
                    right = failure(pair, widest) and right
                elif part == "stress":
                    right = stress(pair, options.rows, widest) and right
                elif part == "beside":
                    beside(pair)
            except Failed as error:
                print(f"FAILED: {error}", flush=True)
                right = False
            except Exception:  # noqa: BLE001  # one part must not keep the next from running
                traceback.print_exc(limit=3)
                right = False
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
