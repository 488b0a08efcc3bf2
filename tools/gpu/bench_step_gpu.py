"""Milliseconds per decode step at DeepSeek-V2-Lite dimensions with dummy weights: native and split in the same run.

    python -m tools.gpu.bench_step_gpu [--rows 1 16 64 128 256 512] [--rounds 3] [--connectors nccl-p2p nvlink]
        [--eager] [--json FILE] [--trace FOLDER]
    python -m tools.gpu.bench_step_gpu --dbo [--rows 128 256 512] [--rounds 3] [--json FILE]

native: steps from graphs; a connector's name: the split's, from graphs on both roles; eager: the split's without.
attention: that role alone from graphs, its exchanges local copies. ffn: that role alone from a graph, on rows as they
come to it. native and attention device: their graphs alone. outside: native - native device, what a step takes beside
its graph. hop us: one way of such rows between two processes, from graphs. bound: attention device + outside + ffn +
2 x exchanges x hop, the step that the parts allow when nothing is hidden; attention itself is no part of it, since
alone it waits for its host, which in a split works while the FFN role computes. A step is (time of 68 tokens - time of
4 tokens) / 64, the median over the rounds, with the variants in turn.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from tools.gpu import bench_hop_gpu, setups, step_file, step_overlap, trace_hops, trace_kernels, trace_read
from tools.gpu.children import Child, Children, Failed
from tools.options import positive

ANSWER_S = 120.0
LONG, SHORT, PROMPT = 68, 4, 16
TRACED, TRACED_TOKENS = (1, 16), 16
EXCHANGES = int(str(setups.LITE["num_hidden_layers"]))


def seconds(child: Child, rows: int, count: int, prompt: int = PROMPT) -> float:
    """One batch of `rows` prompts, which by default all fit into one prefill step."""
    answer = child.ask({"op": "time", "rows": rows, "count": count, "prompt": prompt}, ANSWER_S)
    return float(str(answer["seconds"]))


def step_ms(child: Child, rows: int, prompt: int = PROMPT) -> float:
    """One sample."""
    return 1e3 * (seconds(child, rows, LONG, prompt) - seconds(child, rows, SHORT, prompt)) / (LONG - SHORT)


def start(
    children: Children, sizes: Sequence[int], connectors: Sequence[str], eager: bool
) -> tuple[Mapping[str, Child], Mapping[str, Child]]:
    """(variants to time, FFN roles by variant), all ready."""
    folder = setups.logs("bench-step")
    model = setups.lite(folder / "lite")
    base = setups.common(
        model, device="cuda", rows=max(sizes), tokens=max(8192, max(sizes) * PROMPT), length=2048, cache=8 << 30,
        load_format="dummy",
    )  # fmt: skip
    parted, plain = setups.graphs(base, sizes, native=False), setups.eager(base)
    native = {"options": setups.graphs(base, sizes, native=True)}
    engines = {"native": children.start("native", setups.ENGINE, native, 0)}
    ffns: dict[str, Child] = {}
    for name in connectors:
        engines[name], ffns[name] = setups.split(children, name, parted, plain, "cuda", connector=name)
    if eager:
        more = {"connector": connectors[0]}
        engines["eager"], ffns["eager"] = setups.split(children, "eager", plain, plain, "cuda", **more)
    options = setups.role(parted, "attention", setups.free_port(), connector="none")
    engines["attention"] = children.start("attention-alone", setups.ENGINE, {"options": options}, 0)
    children.ready(setups.READY_S)
    return engines, ffns


def record(rows: int, engines: Mapping[str, Child], connector: str, ffn: Child, folder: Path) -> None:
    """Traces a batch of `rows` rows on native, on both roles of the split and on attention alone; prints them."""
    parts = {"native": ("native",), connector: ("split-attention", "split-ffn"), "attention": ("attention-alone",)}
    lines, files = [], dict[str, Path]()
    for variant, names in parts.items():
        traced = dict(zip(names, (engines[variant], ffn), strict=False))
        seconds(engines[variant], rows, SHORT)  # warm
        for child in traced.values():
            child.ask({"op": "trace_start"}, ANSWER_S)
        seconds(engines[variant], rows, TRACED_TOKENS)
        for name, child in traced.items():
            files[name] = folder / f"{name}-{rows}.json.gz"
            child.ask({"op": "trace_stop", "file": str(files[name])}, ANSWER_S)
            lines.append(trace_read.line(files[name]))
    both = (trace_hops.load(files[f"split-{role}"]) for role in ("attention", "ffn"))
    lines += [trace_hops.HEAD, trace_hops.table(*both)]
    kernels = trace_kernels.table({name: files[name] for name in ("native", "split-attention", "split-ffn")})
    print(f"traces of {rows} rows in {folder}", trace_read.HEAD, *lines, kernels, sep="\n", flush=True)


def timed(engines: Mapping[str, Child], rows: int, rounds: int) -> tuple[dict[str, float], float]:
    """(milliseconds of a step by variant, largest spread of a variant's rounds)."""
    samples: dict[str, list[float]] = {name: [] for name in engines}
    for child in engines.values():
        step_ms(child, rows)  # warm
    for _ in range(rounds):
        for name, child in engines.items():
            samples[name].append(step_ms(child, rows))
    spread = max(max(values) - min(values) for values in samples.values())
    return {name: median(values) for name, values in samples.items()} | {"rows": float(rows)}, spread


def ffn_ms(ffn: Child, attention: Child, rows: int) -> tuple[float, float]:
    """Milliseconds of the FFN role's layers alone, on rows as they come from `attention` and on random ones."""
    ffn.ask({"op": "watch", "rows": rows, "prompt": PROMPT}, ANSWER_S)
    seconds(attention, rows, 1)
    real, random = (ffn.ask({"op": "alone", "rows": rows, "kept": kept}, ANSWER_S)["ms"] for kept in (1, 0))
    return float(str(real)), float(str(random))


def head(variants: Sequence[str], connectors: Sequence[str]) -> str:
    """Above the rows of `line`."""
    columns = [f"{name:>9}" for name in variants]
    columns += ["      ffn", "  (random)", *(f"  hop us, bound and step / bound of {name}" for name in connectors)]
    return " rows " + " ".join(columns) + "  native and attention device"


def line(row: Mapping[str, float], variants: Sequence[str], connectors: Sequence[str]) -> str:
    """One size."""
    columns = [f"{row[name]:9.2f}" for name in variants] + [f"{row['ffn']:9.2f}", f"{row['ffn_random']:10.2f}"]
    for name in connectors:
        bound = row[f"{name}_bound"]
        columns.append(f"  {row[f'{name}_hop_us']:6.1f} {bound:7.2f} {row[name] / bound:7.3f}")
    return f"{row['rows']:5.0f} {' '.join(columns)}  {row['native_device']:8.2f} {row['attention_device']:8.2f}"


def measure(
    sizes: Sequence[int], rounds: int, connectors: Sequence[str], eager: bool, trace: Path | None = None
) -> list[dict[str, float]]:
    """One row per size, printed as it is there."""
    found = []
    if trace is not None:
        trace.mkdir(parents=True, exist_ok=True)
    hops = {name: bench_hop_gpu.in_graphs(sizes, int(str(setups.LITE["hidden_size"])), name) for name in connectors}
    with Children(setups.logs("bench-step")) as children:
        started = time.monotonic()
        engines, ffns = start(children, sizes, connectors, eager)
        print(f"all engines ready in {time.monotonic() - started:.0f} s", flush=True)
        print(head(list(engines), connectors), flush=True)
        for place, rows in enumerate(sizes):
            row, spread = timed(engines, rows, rounds)
            row["graph"] = row[connectors[0]]
            row["ffn"], row["ffn_random"] = ffn_ms(ffns[connectors[0]], engines[connectors[0]], rows)
            for name in ("native", "attention"):
                row[f"{name}_device"] = float(str(engines[name].ask({"op": "graph", "rows": rows}, ANSWER_S)["ms"]))
            row["outside"] = max(0.0, row["native"] - row["native_device"])
            for name in connectors:
                hop = row[f"{name}_hop_us"] = hops[name][place]
                row[f"{name}_bound"] = row["attention_device"] + row["outside"] + row["ffn"] + 2 * EXCHANGES * hop / 1e3
            row["hop_us"] = hops[connectors[0]][place]
            found.append(row)
            print(f"{line(row, list(engines), connectors)}   (largest spread {spread:.2f})", flush=True)
        if trace is not None:
            for rows in (size for size in sizes if size in TRACED):
                record(rows, engines, connectors[0], ffns[connectors[0]], trace)
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
    parser.add_argument("--rows", nargs="+", type=positive, default=[1, 16, 64, 128, 256, 512])
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--connectors", nargs="+", default=[os.environ.get(setups.CONNECTOR, "nccl-p2p")])
    parser.add_argument("--eager", action="store_true", help="the split without graphs too")
    parser.add_argument("--trace", type=Path, help=f"folder for profiler traces of decode steps of {TRACED} rows")
    parser.add_argument("--dbo", action="store_true", help="graphs with and without dual-batch overlap instead")
    options = parser.parse_args()
    try:
        found = (
            measure_overlap(sorted(options.rows), options.rounds)
            if options.dbo
            else measure(sorted(options.rows), options.rounds, options.connectors, options.eager, options.trace)
        )
    except Failed as error:
        print(f"FAILED: {error}", flush=True)
        sys.exit(1)
    if options.json is not None:
        step_file.write(options.json, "v2-lite", found)


if __name__ == "__main__":
    main()
