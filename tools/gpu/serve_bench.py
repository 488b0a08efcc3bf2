"""What all parts of `bench_serve_gpu` share: the model, the clients, the time that is left, the rows so far."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from afd_workers.commands.plan import make
from afd_workers.planner.forecast import Limits, Load
from tools.gpu import serve_traces, setups, words
from tools.gpu.children import Children
from tools.gpu.serve_parts import Part
from tools.gpu.serve_row import Planned, Row
from tools.gpu.servers import Server, Servers, places, used_mib

READY_S, RESERVE_S, WARM = 180.0, 105.0, 128
SIZES = (1, 2, 4, 8, 16, 24, 32, *range(48, 129, 16), *range(160, 257, 32), *range(320, 2049, 64))
#: What one of vLLM's API servers streams at most, token by token, on the host of docs/benchmarks/gpu.md.
FRONT_TOKENS_S = 10_800.0


class Bench:
    """One run; clients: of the part that is measured."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options, self.devices = folder, options, places()
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
        given, name = self.options, f"{part.deployment}:{part.words}"
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

    def trace(self, part: Part, servers: Sequence[Server], others: Sequence[Server]) -> str:
        """Profiler traces of one more run at the largest size, see serve_traces."""
        size = max(self.options.concurrency)
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(self._run, servers, size, self.options.output, requests=size)
            said = serve_traces.record(servers, others, min(60.0, self.left - 20.0))
            load.result()
        return f"{said}, in {self.traces}/{part.slug}-*"

    @property
    def traces(self) -> Path:
        """Where they are."""
        return self.folder / "traces"

    def write(self) -> None:
        """The rows so far, so that nothing is lost with what comes."""
        started = {name: getattr(self.options, name) for name in ("utilization", "max_rows", "stream_interval")}
        found = {**started, "rows": [asdict(row) for row in self.rows]}
        (self.folder / "table.json").write_text(json.dumps(found, indent=2))

    def _planned(self, part: Part, size: int) -> Planned | None:
        if part.mode == "eager" or part.kept:  # neither is in the planner's arithmetic
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


def _share(whole: int, number: int, count: int) -> int:
    return max(1, (number + 1) * whole // count - number * whole // count)


def _number(result: Mapping[str, object], key: str) -> float:
    return float(str(result[key]))
