"""`vllm bench serve` on two devices: native and split servers of one model's dimensions, in one session.

    python -m tools.gpu.bench_serve_gpu [--model v2-lite|qwen3-30b] [--input 256] [--concurrency 64 128 256 512]
        [--parts native split dp2ep] [--limit 520]

native: one server, then two of them on a device each that share the concurrency (tokens/s summed, of the times the
worse one). split: one attention and one FFN rank. dp2ep: one native server, data parallel 2 with expert parallel.
All uncompiled, with graphs of whole decode steps, random weights and prompts, --input tokens in and OUTPUT out, twice
as many requests as run at once. A part that fails does not keep the next one from running. A size is left out when
the time of the parts that are to come would not suffice. Writes DIR/table.json, DIR of the model as setups.logs says.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from tools.gpu import setups, words
from tools.gpu.children import Children, Failed
from tools.gpu.serve_row import HEAD, Row
from tools.gpu.servers import Server, Servers, used_mib

OUTPUT = 256
READY_S, BENCH_S, RESERVE_S = 150.0, 75.0, 105.0
SIZES = (1, 2, 4, 8, 16, 24, 32, *range(48, 129, 16), *range(160, 257, 32), *range(320, 513, 64))


class Bench:
    """What all parts share: the model, the two clients, the time that is left, the rows so far."""

    def __init__(
        self, folder: Path, model: str, prompt: int, limit_s: float, sizes: Sequence[int], kv_gib: float | None
    ) -> None:
        self.folder, self.prompt, self.sizes = folder, prompt, sizes
        self.until = time.monotonic() + limit_s
        self.model = setups.dimensions(model, folder / model)
        words.write(self.model, int(str(setups.DIMENSIONS[model]["vocab_size"])))
        self.clients: Children | None = None
        self.rows: list[Row] = []
        self.later = 0
        self._kv = ["--gpu-memory-utilization", "0.85"]
        if kv_gib is not None:
            self._kv += ["--kv-cache-memory-bytes", str(int(kv_gib * (1 << 30)))]

    @property
    def left(self) -> float:
        """Seconds."""
        return self.until - time.monotonic()

    def arguments(self, *more: str, graphs: bool = True) -> list[str]:
        """Of `vllm serve`; the same for all but `more`."""
        found = [str(self.model), "--load-format", "dummy", "--dtype", "bfloat16", "--max-model-len"]
        # Twice what is needed: vLLM refuses texts that cannot fit by the length of the longest word, without blanks.
        found.append(str(max(2048, 2 * self.prompt)))
        found += ["--max-num-seqs", "512", "--max-num-batched-tokens", "8192", "--no-enable-prefix-caching"]
        found += ["--disable-uvicorn-access-log", *self._kv, *more]
        if graphs:
            chosen = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": list(SIZES)}
            found += ["--compilation-config", json.dumps(chosen)]
        return found

    def ready(self, servers: Servers) -> None:
        """Waits for the servers of a part."""
        started = time.monotonic()
        servers.ready(min(self.until - 30.0, started + READY_S))
        assert self.clients is not None
        self.clients.ready(60.0)
        print(f"  ready in {time.monotonic() - started:.0f} s, {self.left:.0f} s left", flush=True)

    def measure(self, name: str, servers: Sequence[Server], devices: int, *, own: bool = True) -> None:
        """All sizes on servers that share them. own: whether no other part of the same servers comes."""
        holders = [server for server in servers if server.kv_tokens()]
        self._run(servers, min(self.sizes), OUTPUT // 8, requests=min(self.sizes))  # warm
        for size in self.sizes:
            reserve = RESERVE_S * self.later + (0.0 if own else 45.0)
            if self.left < reserve + 20.0 + size / 12:
                print(f"  {name} at {size}: left out, {self.left:.0f} s left, {reserve:.0f} s kept", flush=True)
                continue
            told = self._run(servers, size, OUTPUT, requests=2 * size)
            for each in told:
                if each["error"]:
                    print(f"  a request failed: {str(each['error'])[-300:]}", flush=True)
            row = Row(
                server=name,
                concurrency=size,
                tokens_s=sum(_number(each, "output_throughput") for each in told),
                tpot_p50=max(_number(each, "median_tpot_ms") for each in told),
                tpot_p99=max(_number(each, "p99_tpot_ms") for each in told),
                ttft_p50=max(_number(each, "median_ttft_ms") for each in told),
                failed=2 * size - int(sum(_number(each, "completed") for each in told)),
                used_gib=[mib / 1024 for mib in used_mib()[:devices]],
                kv_tokens=[count for server in holders for count in server.kv_tokens()],
            )
            self.rows.append(row)
            self.write()
            print(row, flush=True)

    def write(self) -> None:
        """The rows so far, so that nothing is lost with what comes."""
        found = [asdict(row) for row in self.rows]
        (self.folder / "table.json").write_text(json.dumps(found, indent=2))

    def _run(self, servers: Sequence[Server], size: int, output: int, *, requests: int) -> list[dict[str, object]]:
        """One result per server, measured at the same time."""

        def one(place: int) -> dict[str, object]:
            share = max(1, size // len(servers))
            job = ["--backend", "openai", "--base-url", servers[place].url, "--model", str(self.model)]
            job += [
                "--tokenizer",
                str(self.model),
                "--dataset-name",
                "random",
                "--ignore-eos",
                "--disable-tqdm",
                "--save-detailed",
            ]
            job += ["--random-input-len", str(self.prompt), "--random-output-len", str(output), "--seed", str(place)]
            job += ["--max-concurrency", str(share), "--num-prompts", str(max(1, requests // len(servers)))]
            limit_s = max(1.0, min(BENCH_S, self.left - 5.0))
            assert self.clients is not None
            return self.clients.all[place].ask({"arguments": job}, limit_s)

        pool = ThreadPoolExecutor(len(servers))
        try:
            return list(pool.map(one, range(len(servers))))
        finally:
            pool.shutdown(wait=False)  # one that still waits ends with its client


def native(bench: Bench) -> None:
    """One server and two."""
    with Servers(bench.folder) as servers:
        both = [servers.start(f"native-{device}", bench.arguments(), str(device)) for device in (0, 1)]
        bench.ready(servers)
        bench.measure("native, 1 GPU", both[:1], 1, own=False)
        bench.measure("native, 2 servers", both, 2)


def split(bench: Bench) -> None:
    """One attention rank on the first device, one FFN rank on the second."""
    port = setups.free_port()

    def section(role: str) -> list[str]:
        return ["--additional-config", json.dumps({"afd": {"role": role, "port": port, "join_timeout_s": READY_S}})]

    with Servers(bench.folder) as servers:
        ffn = servers.start("split-ffn", bench.arguments(*section("ffn"), graphs=False), "1")
        attention = servers.start("split-attention", bench.arguments(*section("attention")), "0")
        bench.ready(servers)
        bench.measure("split 1A1F", [attention], 2)
        missing = ffn.log_text().count("has no graph for a step")
        print(f"  graphs that the FFN rank missed: {missing} kinds", flush=True)


def dp2ep(bench: Bench) -> None:
    """Attention data parallel, experts spread over both devices."""
    parallel = ["--data-parallel-size", "2", "--enable-expert-parallel"]
    parallel += ["--all2all-backend", "allgather_reducescatter"]
    with Servers(bench.folder) as servers:
        server = servers.start("native-dp2ep", bench.arguments(*parallel), "0,1")
        bench.ready(servers)
        bench.measure("native DP2+EP", [server], 2)


PARTS: Mapping[str, Callable[[Bench], None]] = {"native": native, "split": split, "dp2ep": dp2ep}


def run(bench: Bench, parts: Sequence[str]) -> bool:
    """Whether every part went through."""
    right = True
    print(HEAD, flush=True)
    for place, name in enumerate(parts):
        bench.later = len(parts) - place - 1
        print(f"{name} ({bench.left:.0f} s left)", flush=True)
        try:
            with Children(bench.folder / f"clients-{name}") as children:
                for number in (0, 1):  # they load vLLM while the servers do
                    children.start(f"client-{number}", "tools.gpu.bench_client", {}, None)
                bench.clients = children
                PARTS[name](bench)
        except (Failed, OSError, KeyError, ValueError) as error:
            print(f"FAILED: {name}: {type(error).__name__}: {error}", flush=True)
            right = False
    return right


def _number(result: Mapping[str, object], key: str) -> float:
    return float(str(result[key]))


def _ended(number: int, _frame: FrameType | None) -> None:
    """A signal ends the run as an error does, so that no server stays behind."""
    raise SystemExit(128 + number)


def main() -> None:
    """Prints the table; exit code 1 when a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(setups.DIMENSIONS), default="v2-lite")
    parser.add_argument("--input", type=int, default=256, help="tokens of each prompt")
    parser.add_argument("--concurrency", nargs="+", type=int, default=[64, 128, 256, 512])
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument("--limit", type=float, default=520.0, help="seconds for everything")
    parser.add_argument("--kv-gib", type=float, help="size of every KV cache; without it vLLM measures what is free")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _ended)
    folder = setups.logs(f"bench-serve-{options.model}-{options.input}")
    bench = Bench(folder, options.model, options.input, options.limit, sorted(options.concurrency), options.kv_gib)
    right = run(bench, options.parts)
    print(HEAD, *bench.rows, sep="\n", flush=True)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
