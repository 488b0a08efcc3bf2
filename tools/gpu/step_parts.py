"""What a steady decode step is made of in each mode: attention, FFN, transfers, waits, and what of them is hidden.

    python -m tools.gpu.step_parts [--rows 128 512] [--connectors nvlink nccl-p2p] [--dbo] [--folder FOLDER]
    python -m tools.gpu.step_parts --read FOLDER

DeepSeek-V2-Lite dimensions with dummy weights, short contexts, graphs on both roles, each mode's steps traced by the
profiler of either process; --dbo: also with every step split. --read: of traces that are there already. Milliseconds
of one step, medians over the steps of a trace: see step_shares for what each column means. Tracing takes some time
itself, most of all between kernels, so compare with bench_step_gpu before a step is called that long.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

from tools.gpu import setups, step_overlap, step_shares
from tools.gpu.children import Child, Children, Failed
from tools.gpu.trace_read import Launch, Span, launches
from tools.options import positive

ANSWER_S = 120.0
SHORT, TRACED, PROMPT, TOKENS = 4, 16, 16, 8192
HEAD = (
    "| mode | connector | rows | step | attention | FFN | transfer | exposed | attention waits | FFN waits "
    "| hidden fraction |"
)
#: mode, connector, role, rows
_NAME = re.compile(r"(native|graph|dbo)\.([a-z0-9-]*)\.(attention|ffn)\.(\d+)\.json\.gz")
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def start(
    children: Children, sizes: Sequence[int], connectors: Sequence[str], *, overlap: bool, native: bool = True
) -> dict[tuple[str, str], tuple[Child, ...]]:
    """Engines by mode and connector, not ready yet."""
    model = setups.lite(setups.logs("step-parts") / "lite")
    base = setups.common(
        model, device="cuda", rows=max(sizes), tokens=max(TOKENS, max(sizes) * PROMPT), length=2048, cache=4 << 30,
        load_format="dummy",
    )  # fmt: skip
    found: dict[tuple[str, str], tuple[Child, ...]] = {}
    if native:
        options = {"options": setups.graphs(base, sizes, native=True)}
        found["native", ""] = (children.start("native", setups.ENGINE, options, 0),)
    pair = setups.graphs(base, sizes, native=False), setups.eager(base)
    split = [setups.overlap(each, "thresholds", **step_overlap.ALWAYS) for each in pair]
    for name in connectors:
        found["graph", name] = setups.split(children, f"graph-{name}", *pair, "cuda", connector=name)
        if overlap:
            found["dbo", name] = setups.split(children, f"dbo-{name}", split[0], split[1], "cuda", connector=name)
    return found


def record(engines: dict[tuple[str, str], tuple[Child, ...]], rows: int, folder: Path) -> None:
    """A trace of each process while `rows` rows are decoded."""
    for (mode, connector), processes in engines.items():
        for count in (SHORT, TRACED):  # the first one is to warm up
            if count == TRACED:
                for child in processes:
                    child.ask({"op": "trace_start"}, ANSWER_S)
            processes[0].ask({"op": "time", "rows": rows, "count": count, "prompt": PROMPT}, ANSWER_S)
        for role, child in zip(("attention", "ffn"), processes, strict=False):
            file = folder / f"{mode}.{connector}.{role}.{rows}.json.gz"
            child.begin({"op": "trace_stop", "file": str(file)})
        for child in processes:
            child.answer(ANSWER_S)


def load(file: Path) -> tuple[list[Launch], list[Span]]:
    """(graphs of whole steps, all that the device did) on the host's clock."""
    with gzip.open(file, "rt") as stream:
        trace = json.load(stream)
    base = (int(trace.get("baseTimeNanoseconds", 0)) % 10**15) / 1e3  # less, so that parts of a microsecond survive
    events = [{**event, "ts": float(event["ts"]) + base} for event in trace["traceEvents"] if "dur" in event]
    spans = [
        Span(str(event["name"]), event["ts"], event["ts"] + float(event["dur"]))
        for event in events
        if event.get("cat") in _DEVICE
    ]
    return launches(events), sorted(spans, key=lambda span: span.start)


def line(mode: str, connector: str, rows: int, folder: Path) -> str:
    """One row of the table."""
    files = [folder / f"{mode}.{connector}.{role}.{rows}.json.gz" for role in ("attention", "ffn")]
    steps, spans = load(files[0])
    if mode == "native":
        found = step_shares.whole(steps, spans)
    else:
        theirs, others = load(files[1])
        found = step_shares.split(steps, theirs, (spans, others), overlapped=mode == "dbo")
    if not found:
        return f"| {mode} | {connector or '-'} | {rows} | no steps that both traces hold |"
    shares = step_shares.middle(found)
    cells = [f"{each / 1e3:.2f}" for each in astuple(shares)]
    if mode == "native":
        cells[2:5], cells[6] = ["-", "-", "-"], "-"
    hidden = "-" if shares.hidden != shares.hidden else f"{shares.hidden:.2f}"
    return f"| {mode} | {connector or '-'} | {rows} | {' | '.join(cells)} | {hidden} |"


def report(folder: Path) -> None:
    """The table of all traces in a folder."""
    named = (_NAME.fullmatch(file.name) for file in folder.iterdir())
    found = {(int(match[4]), match[1], match[2]) for match in named if match is not None}
    print(HEAD, "|" + "---|" * (HEAD.count(" | ") + 1), sep="\n")
    order = ("native", "graph", "dbo")
    for rows, mode, connector in sorted(found, key=lambda key: (key[0], order.index(key[1]), key[2])):
        print(line(mode, connector, rows, folder), flush=True)


def main() -> None:
    """Prints the table; exit code 1 when an engine failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=positive, default=[128, 512])
    parser.add_argument("--connectors", nargs="+", default=["nvlink", "nccl-p2p"])
    parser.add_argument("--dbo", action="store_true")
    parser.add_argument("--folder", type=Path, help="for the traces", default=setups.logs("step-parts") / "traces")
    parser.add_argument("--read", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    if given.read is not None:
        report(given.read)
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    try:
        with Children(setups.logs("step-parts")) as children:
            engines = start(children, given.rows, given.connectors, overlap=given.dbo)
            children.ready(setups.READY_S)
            for rows in sorted(given.rows):
                record(engines, rows, given.folder)
    except Failed as error:
        print(f"FAILED: {error}", flush=True)
        sys.exit(1)
    report(given.folder)


if __name__ == "__main__":
    main()
