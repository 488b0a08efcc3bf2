"""Milliseconds per decode step, native and split in the same run, on toy checkpoints on CPU.

    python tools/bench_step.py [--family qwen3-moe ...] [--requests 1 8] [--tokens 100] [--rounds 7] [--json]

One native engine, one attention engine and one FFN server are alive together; the two engines are measured in turn
(A B A B ...), each on the first processor with one thread, the FFN server on the second. A step is (time of N tokens -
time of 1 token) / (N - 1), the figure the median over the rounds. "added" is (split - native) / exchanges per step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
START_S = 300.0
ENV = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
OPTIONS = ("--max-model-len", "512", "--dtype", "bfloat16", "--enforce-eager", "--kv-cache-memory-bytes", "67108864")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; times in milliseconds. exchange: as seen from attention, FFN compute included."""

    family: str
    requests: int
    native: float
    split: float
    exchange: float
    exchanges_per_step: int
    added: float


class Engine:
    """An offline vLLM engine in a child process pinned to processor ``core``; asked through its standard input."""

    def __init__(self, model: Path, additional: Mapping[str, object], core: int, log: Path) -> None:
        command = ["taskset", "-c", str(core), sys.executable, __file__, "--engine", str(model), json.dumps(additional)]
        with log.open("w") as stream:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env={**os.environ, **ENV},
                cwd=ROOT,
                text=True,
            )
        self._log = log

    def ask(self, requests: int, tokens: int) -> Mapping[str, float]:
        """seconds for ``tokens`` greedy tokens of ``requests`` prompts at once, and the exchange figures after it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"requests": requests, "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        limit = threading.Timer(START_S, self._process.kill)  # a killed engine ends the reading below
        limit.start()
        try:
            for line in self._process.stdout:
                if line.startswith("{"):
                    figures: dict[str, float] = json.loads(line)
                    return figures
        finally:
            limit.cancel()
        raise RuntimeError(
            f"Expected figures from the engine within {START_S:g} s, found its end: {self._log.read_text()[-2000:]}"
        )

    def close(self) -> None:
        """Ends the child."""
        self._process.kill()
        self._process.wait(10)


def engine(model: str, additional: str) -> None:
    """The child: one engine, one line of figures per line of standard input."""
    from vllm import LLM, SamplingParams, TokensPrompt

    llm = LLM(
        model=model,
        max_model_len=512,
        dtype="bfloat16",
        enforce_eager=True,
        kv_cache_memory_bytes=64 << 20,
        enable_prefix_caching=False,
        max_num_batched_tokens=1024,
        additional_config=json.loads(additional),
    )
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    for line in sys.stdin:
        job = json.loads(line)
        prompts = [TokensPrompt(prompt_token_ids=[10 + n, 50, 90, 130]) for n in range(job["requests"])]
        sampling = SamplingParams(temperature=0, max_tokens=job["tokens"], ignore_eos=True, detokenize=False)
        started = time.perf_counter()
        llm.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - started
        figures = worker.exchange_figures() if hasattr(worker, "exchange_figures") else {}
        print(json.dumps({**figures, "elapsed": seconds}), flush=True)


@contextmanager
def engines(family: str) -> Iterator[tuple[Engine, Engine]]:
    """(native, attention with its FFN server), started together."""
    sys.path.insert(0, str(ROOT))
    from afd_workers.launch.fleet import Fleet
    from afd_workers.launch.plan import Request, split
    from afd_workers.launch.topology import Topology
    from tools import toy_checkpoint

    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="afd-bench-")))
        model = toy_checkpoint.make(family, folder / "model")
        options = (*OPTIONS, "--no-enable-prefix-caching", "--max-num-batched-tokens", "1024")
        attention, ffn = split(
            Request(str(model), Topology(1, 1), "127.0.0.1", 0, options), {**os.environ, **ENV}, cpu=True
        )
        section = json.loads(attention.command[attention.command.index("--additional-config") + 1])
        fleet = stack.enter_context(Fleet((ffn,), lambda _line: None))
        os.sched_setaffinity(fleet.pids["ffn 0"], {cores[-1]})
        native = Engine(model, {}, cores[0], folder / "native.log")
        stack.callback(native.close)
        parted = Engine(model, section, cores[0], folder / "attention.log")
        stack.callback(parted.close)
        fleet.wait_ready(START_S)
        yield native, parted


def measure(family: str, sizes: Sequence[int], tokens: int, rounds: int) -> Iterator[Row]:
    """One row per number of requests."""
    with engines(family) as (native, parted):
        for requests in sizes:
            for each in (native, parted):
                each.ask(requests, tokens)  # warm
            before = parted.ask(requests, 1)
            steps: dict[str, list[float]] = {"native": [], "split": []}
            for _ in range(rounds):
                for name, each in (("native", native), ("split", parted)):
                    first = each.ask(requests, 1)["elapsed"]
                    steps[name].append(1e3 * (each.ask(requests, tokens)["elapsed"] - first) / (tokens - 1))
            after = parted.ask(requests, 1)
            exchanges = after["exchanges"] - before["exchanges"]
            per_step = round(exchanges / (after["steps"] - before["steps"]))
            one, other = median(steps["native"]), median(steps["split"])
            exchange = 1e3 * (after["seconds"] - before["seconds"]) / exchanges
            yield Row(family, requests, one, other, exchange, per_step, (other - one) / per_step)


def main() -> None:
    """Prints the table, or with --json one object per row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", nargs="+", default=["qwen3-moe", "deepseek-v2"])
    parser.add_argument("--requests", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not options.json:
        print("family       requests  native ms  split ms  exchange ms  exchanges/step  added ms/exchange", flush=True)
    for family in options.family:
        for row in measure(family, options.requests, options.tokens, options.rounds):
            if options.json:
                print(json.dumps(asdict(row)), flush=True)
            else:
                print(
                    f"{row.family:12} {row.requests:8} {row.native:10.2f} {row.split:9.2f} {row.exchange:12.3f}"
                    f" {row.exchanges_per_step:15} {row.added:18.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--engine"]:
        engine(*sys.argv[2:4])
    else:
        main()
