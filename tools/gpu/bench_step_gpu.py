"""Milliseconds per decode step at DeepSeek-V2-Lite dimensions with dummy weights: native and split in the same run.

    python -m tools.gpu.bench_step_gpu [--rows 1 16 64 128 256 512] [--rounds 3] [--json FILE] [--trace FOLDER]
    python -m tools.gpu.bench_step_gpu --dbo [--rows 128 256 512] [--rounds 3] [--json FILE]

native and graph: steps from graphs; eager: both roles without; attention: that role alone from graphs, its exchanges
local copies; ffn: that role alone from a graph. A step is (time of 68 tokens - time of 4 tokens) / 64, the median
over the rounds, with the variants in turn. hop us: (graph - attention - ffn) / exchanges / 2, what one way costs.
native and attention device: their graphs alone, without what the host adds to a step when it is the slower one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from tools.gpu import setups, step_overlap, trace_hops, trace_read
from tools.gpu.children import Child, Children, Failed

ANSWER_S = 120.0
LONG, SHORT, PROMPT = 68, 4, 16
TRACED, TRACED_TOKENS = 16, 16
VARIANTS = ("native", "graph", "eager", "attention")
HEAD = (
    "rows  native ms  graph ms  eager ms  attention ms  ffn ms  graph/native  graph-att-ffn  hop us"
    "  native device  attention device"
)


def seconds(child: Child, rows: int, count: int, prompt: int = PROMPT) -> float:
    """One batch of `rows` prompts, which by default all fit into one prefill step."""
    answer = child.ask({"op": "time", "rows": rows, "count": count, "prompt": prompt}, ANSWER_S)
    return float(str(answer["seconds"]))


def step_ms(child: Child, rows: int, prompt: int = PROMPT) -> float:
    """One sample."""
    return 1e3 * (seconds(child, rows, LONG, prompt) - seconds(child, rows, SHORT, prompt)) / (LONG - SHORT)


def start(children: Children, sizes: Sequence[int]) -> tuple[Mapping[str, Child], Mapping[str, Child]]:
    """(variants to time, FFN roles by variant), all ready."""
    folder = setups.logs("bench-step")
    model = setups.lite(folder / "lite")
    base = setups.common(
        model, device="cuda", rows=max(sizes), tokens=max(8192, max(sizes) * PROMPT), length=2048, cache=8 << 30,
        load_format="dummy",
    )  # fmt: skip
    parted = setups.graphs(base, sizes, native=False)
    eager = setups.eager(base)
    native = children.start("native", setups.ENGINE, {"options": setups.graphs(base, sizes, native=True)}, 0)
    graph, graph_ffn = setups.split(children, "graph", parted, eager, "cuda")
    plain, plain_ffn = setups.split(children, "eager", eager, eager, "cuda")
    options = setups.role(parted, "attention", setups.free_port(), connector="none")
    alone = children.start("attention-alone", setups.ENGINE, {"options": options}, 0)
    children.ready(setups.READY_S)
    return dict(zip(VARIANTS, (native, graph, plain, alone), strict=True)), {"graph": graph_ffn, "eager": plain_ffn}


def record(engines: Mapping[str, Child], ffn: Child, folder: Path) -> None:
    """Traces a batch of TRACED rows on native, on both roles of the split and on attention alone; prints them."""
    parts = {"native": ("native",), "graph": ("split-attention", "split-ffn"), "attention": ("attention-alone",)}
    lines = []
    for variant, names in parts.items():
        traced = dict(zip(names, (engines[variant], ffn), strict=False))
        seconds(engines[variant], TRACED, SHORT)  # warm
        for child in traced.values():
            child.ask({"op": "trace_start"}, ANSWER_S)
        seconds(engines[variant], TRACED, TRACED_TOKENS)
        for name, child in traced.items():
            file = folder / f"{name}.json.gz"
            child.ask({"op": "trace_stop", "file": str(file)}, ANSWER_S)
            lines.append(trace_read.line(file))
    both = (trace_hops.load(folder / f"split-{role}.json.gz") for role in ("attention", "ffn"))
    lines += [trace_hops.HEAD, trace_hops.table(*both)]
    print(f"traces of {TRACED} rows in {folder}", trace_read.HEAD, *lines, sep="\n", flush=True)


def measure(sizes: Sequence[int], rounds: int, trace: Path | None = None) -> list[dict[str, float]]:
    """One row per size, printed as it is there."""
    found = []
    if trace is not None:
        trace.mkdir(parents=True, exist_ok=True)
    with Children(setups.logs("bench-step")) as children:
        started = time.monotonic()
        engines, ffns = start(children, sizes)
        print(f"all engines ready in {time.monotonic() - started:.0f} s", flush=True)
        print(HEAD, flush=True)
        exchanges = float(str(setups.LITE["num_hidden_layers"]))
        for rows in sizes:
            samples: dict[str, list[float]] = {name: [] for name in engines}
            for child in engines.values():
                step_ms(child, rows)  # warm
            for _ in range(rounds):
                for name, child in engines.items():
                    samples[name].append(step_ms(child, rows))
            row = {name: median(values) for name, values in samples.items()} | {"rows": float(rows)}
            row["ffn"] = float(str(ffns["graph"].ask({"op": "alone", "rows": rows}, ANSWER_S)["ms"]))
            for name in ("native", "attention"):
                row[f"{name}_device"] = float(str(engines[name].ask({"op": "graph", "rows": rows}, ANSWER_S)["ms"]))
            row["left"] = row["graph"] - row["attention"] - row["ffn"]
            row["hop_us"] = 1e3 * row["left"] / exchanges / 2
            found.append(row)
            spread = max(samples["graph"]) - min(samples["graph"])
            print(
                f"{rows:4} {row['native']:10.2f} {row['graph']:9.2f} {row['eager']:9.2f} {row['attention']:13.2f}"
                f" {row['ffn']:7.2f} {row['graph'] / row['native']:13.3f} {row['left']:14.2f} {row['hop_us']:7.1f}"
                f" {row['native_device']:14.2f} {row['attention_device']:17.2f}"
                f"   (graph spread {spread:.2f})",
                flush=True,
            )
        if trace is not None:
            record(engines, ffns["graph"], trace)
        for name, child in ffns.items():
            told = child.ask({"op": "figures"}, ANSWER_S)
            print(f"FFN {name}: {', '.join(f'{key} {value:.6g}' for key, value in told.items())}", flush=True)
    return found


def measure_overlap(sizes: Sequence[int], rounds: int) -> list[dict[str, float]]:
    """With --dbo: see step_overlap."""
    with Children(setups.logs("bench-step-dbo")) as children:
        engines = step_overlap.start(children, sizes)
        children.ready(setups.READY_S)
        return step_overlap.table(engines, sizes, rounds)


def main() -> None:
    """Prints the table; exit code 1 when an engine failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 16, 64, 128, 256, 512])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--trace", type=Path, help=f"folder for profiler traces of decode steps of {TRACED} rows")
    parser.add_argument("--dbo", action="store_true", help="graphs with and without dual-batch overlap instead")
    setups.connector_option(parser)
    options = parser.parse_args()
    try:
        found = (
            measure_overlap(sorted(options.rows), options.rounds)
            if options.dbo
            else measure(sorted(options.rows), options.rounds, options.trace)
        )
    except Failed as error:
        print(f"FAILED: {error}", flush=True)
        sys.exit(1)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
