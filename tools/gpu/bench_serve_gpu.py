"""`vllm bench serve` on any number of devices: native and split servers of one model's dimensions, in one session.

    python -m tools.gpu.bench_serve_gpu [--shape NAME] [--model v2-lite|qwen3-30b] [--input 256] [--output 256]
        [--concurrency 64 128 256 512] [--parts native1,2 1A1F dp2ep 3A1F:dbo 1A1F-tp2-ep2 2A2F:eager ...]
        [--utilization 0.85] [--max-rows 512] [--stream-interval 1] [--times FILE] [--limit 520] [--traces]

Parts, see serve_parts: nativeN, that many servers on a device each that share the concurrency (tokens/s summed, of
the times the worst); dpNep, one native server, data and expert parallel; xAyF, attention servers and FFN servers. Each
:graph (without a word), :dbo or :eager, then what attention keeps: 1A1F:graph+shared+dense. One that needs more devices
than there are says so and is left out.
All uncompiled, with graphs of whole decode steps, random weights and prompts, twice as many requests as run at once
(--waves). --shape: a load of tools/gpu/shapes.py. A part that fails does not keep the next one from running. A size but
the first is left out when the time of the parts that are to come would not suffice. Beside each row stands what
`afd plan` expects, from --times (bench_step_gpu --json) or else from estimates. Writes DIR/table.json, DIR of the
model as setups.logs says.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType

from afd_workers.planner.deployment import Deployment
from tools.gpu import serve_traces, setups
from tools.gpu.children import Children, Failed
from tools.gpu.serve_bench import Bench
from tools.gpu.serve_options import read
from tools.gpu.serve_parts import Part, Spec, specs
from tools.gpu.serve_row import HEAD
from tools.gpu.servers import Server, Servers, place

LEAST_S = 75.0  # to start a part and to measure something


def serve(bench: Bench, part: Part) -> None:
    """Starts a part's servers, measures, ends them."""
    asked, others = specs(part, bench.arguments)
    with Servers(bench.folder) as servers:

        def started(spec: Spec) -> Server:
            name, more = f"{part.slug}-{spec.name}", tuple[str, ...]()
            if bench.options.traces:
                more = serve_traces.options(bench.traces / name)
            return servers.start(name, [str(bench.model), *spec.arguments, *more], place(spec.devices))

        ffn = [started(spec) for spec in others]
        fronts = [started(spec) for spec in asked]
        bench.ready(servers)
        if part.counts:
            for count in part.counts:
                few = replace(part, deployment=Deployment("native", count), counts=(count,))
                bench.measure(few, fronts[:count], own=count == part.counts[-1])
        else:
            bench.measure(part, fronts)
        if bench.options.traces:
            print(f"  {bench.trace(part, fronts, ffn)}", flush=True)
        missing = sum(server.log_text().count("has no graph for a step") for server in ffn)
        if ffn:
            print(f"  graphs that FFN ranks missed: {missing} kinds", flush=True)
        for server in fronts:
            for line in server.lines_with("timed dual-batch overlap"):
                print(f"  {line[-300:]}", flush=True)


def run(bench: Bench, parts: Sequence[Part]) -> bool:
    """Whether every part went through that this host has the devices for."""
    right = True
    possible = [part for part in parts if part.lacking(bench.devices) is None]
    for part in parts:
        if (sentence := part.lacking(bench.devices)) is not None:
            print(f"left out: {sentence}", flush=True)
    print(HEAD, flush=True)
    for number, part in enumerate(possible):
        if bench.left < LEAST_S:
            print(f"left out: {part}, {bench.left:.0f} s left", flush=True)
            continue
        bench.later = len(possible) - number - 1
        print(f"{part} ({bench.left:.0f} s left)", flush=True)
        try:
            with Children(bench.folder / f"clients-{part.slug}") as children:
                for client in range(max(2, part.devices)):  # they load vLLM while the servers do
                    children.start(f"client-{client}", "tools.gpu.bench_client", {}, None)
                bench.clients = children
                serve(bench, part)
        except (Failed, OSError, KeyError, ValueError) as error:
            print(f"FAILED: {part}: {type(error).__name__}: {error}", flush=True)
            right = False
    return right


def _ended(number: int, _frame: FrameType | None) -> None:
    """A signal ends the run as an error does, so that no server stays behind."""
    raise SystemExit(128 + number)


def main() -> None:
    """Prints the table; exit code 1 when a part failed."""
    options = read(__doc__)
    signal.signal(signal.SIGTERM, _ended)
    folder = setups.logs(f"bench-serve-{options.model}-{options.input}-{options.output}")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        bench = Bench(folder, options)
    except ValueError as error:  # of --times
        sys.exit(f"bench_serve_gpu: {error}")
    right = run(bench, options.parts)
    print(HEAD, *bench.rows, sep="\n", flush=True)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
