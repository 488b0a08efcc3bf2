"""`vllm bench serve` on any number of devices: native and split servers of one model's dimensions, in one session.

    python -m tools.gpu.bench_serve_gpu [--shape NAME] [--model v2-lite|qwen3-30b] [--input 256] [--output 256]
        [--concurrency 64 128 256 512] [--parts native1,2 1A1F dp2ep 3A1F:dbo 1A1F-tp2-ep2 2A2F:eager ...]
        [--utilization 0.85] [--max-rows 512] [--stream-interval 1] [--times FILE] [--limit 520]

Parts, see serve_parts: nativeN, that many servers on a device each that share the concurrency (tokens/s summed, of
the times the worst); dpNep, one native server, data and expert parallel; xAyF, attention servers and FFN servers. Each
:graph (without a word), :dbo or :eager. One that needs more devices than there are says so and is left out.
All uncompiled, with graphs of whole decode steps, random weights and prompts, twice as many requests as run at once
(--waves). --shape: a load of tools/gpu/shapes.py. A part that fails does not keep the next one from running. A size but
the first is left out when the time of the parts that are to come would not suffice. Beside each row stands what
`afd plan` expects, from --times (bench_step_gpu --json) or else from estimates. Writes DIR/table.json, DIR of the
model as setups.logs says.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType

from afd_workers.commands.plan import make
from afd_workers.planner.deployment import Deployment
from afd_workers.planner.forecast import Limits, Load
from tools.gpu import setups, words
from tools.gpu.children import Children, Failed
from tools.gpu.serve_parts import Part, Spec, read_part, specs
from tools.gpu.serve_row import HEAD, Planned, Row
from tools.gpu.servers import Server, Servers, place, used_mib
from tools.gpu.shapes import SHAPES

READY_S, BENCH_S, RESERVE_S, WARM = 180.0, 150.0, 105.0, 128
SIZES = (1, 2, 4, 8, 16, 24, 32, *range(48, 129, 16), *range(160, 257, 32), *range(320, 2049, 64))
#: What one of vLLM's API servers streams at most, token by token, on the host of docs/benchmarks/gpu.md.
FRONT_TOKENS_S = 10_800.0


class Bench:
    """What all parts share: the model, the clients, the time that is left, the rows so far."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options, self.devices = folder, options, len(used_mib())
        self.until = time.monotonic() + options.limit
        self.model = setups.dimensions(options.model, folder / options.model)
        words.write(self.model, int(str(setups.DIMENSIONS[options.model]["vocab_size"])))
        self.clients: Children | None = None
        self.rows: list[Row] = []
        self.later = 0
        front = FRONT_TOKENS_S if options.stream_interval == 1 else 0.0
        limits = Limits(options.utilization, options.max_rows, front)
        self._planner = make(setups.DIMENSIONS[options.model], limits, times=options.times)

    @property
    def left(self) -> float:
        """Seconds."""
        return self.until - time.monotonic()

    def arguments(self, graphs: bool) -> list[str]:
        """Of `vllm serve`; the same for every server but for what its part and role need."""
        given = self.options
        found = ["--load-format", "dummy", "--dtype", "bfloat16", "--max-model-len"]
        # Twice what is needed: vLLM refuses texts that cannot fit by the length of the longest word, without blanks.
        found.append(str(max(2048, 2 * given.input, given.input + given.output + 64)))
        found += ["--max-num-seqs", str(given.max_rows), "--max-num-batched-tokens", "8192"]
        found += ["--no-enable-prefix-caching", "--disable-uvicorn-access-log"]
        found += ["--gpu-memory-utilization", str(given.utilization)]
        found += ["--stream-interval", str(given.stream_interval)]
        if given.kv_gib is not None:
            found += ["--kv-cache-memory-bytes", str(int(given.kv_gib * (1 << 30)))]
        if graphs:
            sizes = [size for size in SIZES if size <= given.max_rows]
            chosen = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": sizes}
            return [*found, "--compilation-config", json.dumps(chosen)]
        return [*found, "--enforce-eager"]

    def ready(self, servers: Servers) -> None:
        """Waits for the servers of a part."""
        started = time.monotonic()
        servers.ready(min(self.until - 30.0, started + READY_S))
        assert self.clients is not None
        self.clients.ready(60.0)
        print(f"  ready in {time.monotonic() - started:.0f} s, {self.left:.0f} s left", flush=True)

    def measure(self, part: Part, servers: Sequence[Server], *, own: bool = True) -> None:
        """All sizes on servers that share them. own: whether no other part of the same servers comes."""
        given, name = self.options, f"{part.deployment}:{part.mode}"
        holders = [server for server in servers if server.kv_tokens()]
        sizes = sorted(given.concurrency)
        self._run(servers, min(sizes[0], WARM), max(1, given.output // 8), requests=min(sizes[0], WARM))  # warm
        for size in sizes:
            reserve = RESERVE_S * self.later + (0.0 if own else 45.0)
            if size == sizes[0]:
                reserve = 0.0
            if self.left < reserve + 20.0 + size * given.output / 3072:
                print(f"  {name} at {size}: left out, {self.left:.0f} s left, {reserve:.0f} s kept", flush=True)
                continue
            told = self._run(servers, size, given.output, requests=given.waves * size)
            for each in told:
                if each["error"]:
                    print(f"  a request failed: {str(each['error'])[-300:]}", flush=True)
            row = Row(
                server=name,
                model=given.model,
                prompt=given.input,
                output=given.output,
                concurrency=size,
                tokens_s=sum(_number(each, "output_throughput") for each in told),
                tpot_p50=max(_number(each, "median_tpot_ms") for each in told),
                tpot_p99=max(_number(each, "p99_tpot_ms") for each in told),
                ttft_p50=max(_number(each, "median_ttft_ms") for each in told),
                failed=given.waves * size - int(sum(_number(each, "completed") for each in told)),
                used_gib=[mib / 1024 for mib in used_mib()[: part.devices]],
                kv_tokens=[count for server in holders for count in server.kv_tokens()],
                planned=self._planned(part, size),
            )
            self.rows.append(row)
            self.write()
            print(row, flush=True)

    def write(self) -> None:
        """The rows so far, so that nothing is lost with what comes."""
        found = [asdict(row) for row in self.rows]
        (self.folder / "table.json").write_text(json.dumps(found, indent=2))

    def _planned(self, part: Part, size: int) -> Planned | None:
        if part.mode == "eager":
            return None
        load = Load(self.options.input, self.options.output, size)
        found = self._planner.forecast(part.deployment, load, overlap=part.mode == "dbo")
        if part.mode == "dbo":  # the measured rule leaves out what does not pay
            whole = self._planner.forecast(part.deployment, load)
            found = max(found, whole, key=lambda each: each.tokens_s)
        return Planned(found.tokens_s, found.tpot_ms, found.bound)

    def _run(self, servers: Sequence[Server], size: int, output: int, *, requests: int) -> list[dict[str, object]]:
        """One result per client, measured at the same time; a single server is asked by all clients."""
        assert self.clients is not None
        clients = self.clients.all[: len(servers)] if len(servers) > 1 else self.clients.all

        def one(number: int) -> dict[str, object]:
            server = servers[number % len(servers)]
            job = ["--backend", "openai", "--base-url", server.url, "--model", str(self.model)]
            job += ["--tokenizer", str(self.model), "--dataset-name", "random", "--ignore-eos", "--disable-tqdm"]
            job += ["--save-detailed", "--random-input-len", str(self.options.input)]
            job += ["--random-output-len", str(output), "--seed", str(number)]
            job += ["--max-concurrency", str(_share(size, number, len(clients)))]
            job += ["--num-prompts", str(_share(requests, number, len(clients)))]
            limit_s = max(1.0, min(self.options.bench, self.left - 5.0))
            return clients[number].ask({"arguments": job}, limit_s)

        pool = ThreadPoolExecutor(len(clients))
        try:
            return list(pool.map(one, range(len(clients))))
        finally:
            pool.shutdown(wait=False)  # one that still waits ends with its client


def serve(bench: Bench, part: Part) -> None:
    """Starts a part's servers, measures, ends them."""
    asked, others = specs(part, bench.arguments)
    with Servers(bench.folder) as servers:

        def started(spec: Spec) -> Server:
            return servers.start(f"{part.slug}-{spec.name}", [str(bench.model), *spec.arguments], place(spec.devices))

        ffn = [started(spec) for spec in others]
        fronts = [started(spec) for spec in asked]
        bench.ready(servers)
        if part.counts:
            for count in part.counts:
                few = replace(part, deployment=Deployment("native", count), counts=(count,))
                bench.measure(few, fronts[:count], own=count == part.counts[-1])
            return
        bench.measure(part, fronts)
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


def _shape(parser: argparse.ArgumentParser) -> dict[str, object]:
    """What the shape that was asked for changes of the options' defaults."""
    name = parser.parse_known_args()[0].shape
    if name is None:
        return {}
    found = asdict(SHAPES[name])
    return {**found, "input": found["prompt"], "parts": [Part.parse(part) for part in SHAPES[name].parts]}


def _share(whole: int, number: int, count: int) -> int:
    return max(1, (number + 1) * whole // count - number * whole // count)


def _number(result: Mapping[str, object], key: str) -> float:
    return float(str(result[key]))


def _ended(number: int, _frame: FrameType | None) -> None:
    """A signal ends the run as an error does, so that no server stays behind."""
    raise SystemExit(128 + number)


def main() -> None:
    """Prints the table; exit code 1 when a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(SHAPES), help="a load with a name, whose parts other options change")
    parser.add_argument("--model", choices=tuple(setups.DIMENSIONS), default="v2-lite")
    parser.add_argument("--input", type=int, default=256, help="tokens of each prompt")
    parser.add_argument("--output", type=int, default=256, help="tokens that each request is given")
    parser.add_argument("--concurrency", nargs="+", type=int, default=[64, 128, 256, 512])
    parser.add_argument(
        "--parts", nargs="+", type=read_part, default=[Part.parse(p) for p in ("native1,2", "1A1F", "dp2ep")]
    )
    parser.add_argument("--waves", type=int, default=2, help="requests per one that runs at once")
    parser.add_argument("--limit", type=float, default=520.0, help="seconds for everything")
    parser.add_argument("--bench", type=float, default=BENCH_S, help="seconds for one size")
    parser.add_argument("--kv-gib", type=float, help="size of every KV cache; without it vLLM measures what is free")
    parser.add_argument("--utilization", type=float, default=0.85, help="of each device's memory")
    parser.add_argument("--max-rows", type=int, default=512, help="requests that an engine runs at once")
    parser.add_argument("--stream-interval", type=int, default=1, help="tokens per message of every server's stream")
    parser.add_argument("--times", type=Path, help="measured steps for the planner")
    setups.connector_option(parser)
    parser.set_defaults(**_shape(parser))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _ended)
    folder = setups.logs(f"bench-serve-{options.model}-{options.input}-{options.output}")
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(folder, options)
    right = run(bench, options.parts)
    print(HEAD, *bench.rows, sep="\n", flush=True)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
