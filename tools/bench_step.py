"""Milliseconds per decode step, native and split in the same run, on toy checkpoints on CPU.

    python tools/bench_step.py [--family qwen3-moe ...] [--requests 1 8] [--layers 16] [--rounds 40] [--json]
        [--section '{"shared_experts_on_attention": true}']

One native engine, one attention engine and one FFN server are alive together; the two engines are measured in short
turns (A B A B ...), so that both see the host in the same moods, both on one processor with one thread, the FFN server
on another; from one pair of turns to the next the processors change places. A turn's figure is the median of its decode
steps. "added" is (split - native) / exchanges per step: the median over the pairs of turns, and of each engine's least
turn, which is what a host without neighbours does. Split can be disturbed on two processors and native on one, so pairs
in which others took them are shown apart: "all" is the median over every pair, the other columns are of the calm ones.
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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from afd_workers.launch.guard import guarded
from tools import toy_checkpoint
from tools.options import json_object, positive
from tools.undisturbed import Turn, put, undisturbed

ROOT = Path(__file__).resolve().parent.parent
START_S = 300.0
ENV = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
OPTIONS = ("--max-model-len", "512", "--dtype", "bfloat16", "--enforce-eager", "--kv-cache-memory-bytes", "67108864")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; times in milliseconds.

    turns: calm pairs, see `undisturbed`, which the other columns are of. exchange: as seen from attention in all turns,
    FFN compute included. added_all: in all pairs.
    """

    family: str
    requests: int
    turns: int
    native: float
    split: float
    exchange: float
    exchanges_per_step: int
    added: float
    added_at_least: float
    added_all: float


class Engine:
    """An offline vLLM engine in a child process pinned to processor ``core``; asked through its standard input."""

    def __init__(self, model: Path, additional: Mapping[str, object], core: int, log: Path) -> None:
        command = ["taskset", "-c", str(core), sys.executable, __file__, "--engine", str(model), json.dumps(additional)]
        with log.open("w") as stream:
            self._process = subprocess.Popen(
                guarded(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env={**os.environ, **ENV},
                cwd=ROOT,
                text=True,
            )
        self._log = log
        self.pid = self._process.pid

    def ask(self, requests: int, tokens: int) -> Mapping[str, float]:
        """Seconds of a decode step while ``requests`` prompts get ``tokens`` tokens, and the exchange figures."""
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
        for number, prompt in enumerate(prompts):
            llm.llm_engine.add_request(str(number), prompt, sampling)
        steps = []
        while llm.llm_engine.has_unfinished_requests():
            started = time.perf_counter()
            llm.llm_engine.step()
            steps.append(time.perf_counter() - started)
        figures = worker.exchange_figures() if hasattr(worker, "exchange_figures") else {}
        print(json.dumps({**figures, "step": median(steps[1:])}), flush=True)


@contextmanager
def engines(family: str, layers: int, section: Mapping[str, object]) -> Iterator[tuple[Engine, Engine, int]]:
    """(native, attention, process of its FFN server), started together. section: of "afd", for both roles."""
    from afd_workers.launch.fleet import Fleet
    from afd_workers.launch.plan import Request, split
    from afd_workers.launch.topology import Topology

    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="afd-bench-")))
        model = toy_checkpoint.make(family, folder / "model", layers=layers)
        options = (*OPTIONS, "--no-enable-prefix-caching", "--max-num-batched-tokens", "1024")
        attention, ffn = split(
            Request(str(model), Topology(1, 1), "127.0.0.1", 0, options, section), {**os.environ, **ENV}, cpu=True
        )
        agreed = json.loads(attention.command[attention.command.index("--additional-config") + 1])
        fleet = stack.enter_context(Fleet((ffn,), lambda _line: None))
        os.sched_setaffinity(fleet.pids["ffn 0"], {cores[-1]})
        native = Engine(model, {}, cores[0], folder / "native.log")
        stack.callback(native.close)
        parted = Engine(model, agreed, cores[0], folder / "attention.log")
        stack.callback(parted.close)
        fleet.wait_ready(START_S)
        yield native, parted, fleet.pids["ffn 0"]


def measure(
    family: str, layers: int, sizes: Sequence[int], tokens: int, rounds: int, section: Mapping[str, object]
) -> Iterator[Row]:
    """One row per number of requests."""
    cores = sorted(os.sched_getaffinity(0))
    with engines(family, layers, section) as (native, parted, ffn):
        for requests in sizes:
            for each in (native, parted):
                each.ask(requests, tokens)  # warm
            before = parted.ask(requests, 2)
            pairs = []
            for number in range(rounds):
                ours, other = (cores[0], cores[-1]) if number % 2 == 0 else (cores[-1], cores[0])
                for pid, core in ((native.pid, ours), (parted.pid, ours), (ffn, other)):
                    put(pid, core)
                with Turn(native.pid) as whole:
                    whole.step = 1e3 * native.ask(requests, tokens)["step"]
                with Turn(parted.pid, ffn) as split:
                    split.step = 1e3 * parted.ask(requests, tokens)["step"]
                pairs.append((whole, split))
            after = parted.ask(requests, 2)
            yield summed_up(family, requests, pairs, before, after)


def summed_up(
    family: str,
    requests: int,
    pairs: Sequence[tuple[Turn, Turn]],
    before: Mapping[str, float],
    after: Mapping[str, float],
) -> Row:
    """The figures of one table row; every column but the exchange's and the last of calm pairs where there are any."""
    calm = undisturbed(pairs)
    native_ms, split_ms = ([turn.step for turn in side] for side in zip(*(calm or pairs), strict=True))
    exchanges = after["exchanges"] - before["exchanges"]
    per_step = round(exchanges / (after["steps"] - before["steps"]))
    return Row(
        family,
        requests,
        len(calm),
        median(native_ms),
        median(split_ms),
        1e3 * (after["seconds"] - before["seconds"]) / exchanges,
        per_step,
        median(split - whole for whole, split in zip(native_ms, split_ms, strict=True)) / per_step,
        (min(split_ms) - min(native_ms)) / per_step,
        median(split.step - whole.step for whole, split in pairs) / per_step,
    )


def main() -> None:
    """Prints the table, or with --json one object per row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", nargs="+", choices=toy_checkpoint.runnable(), default=["qwen3-moe", "deepseek-v2"])
    parser.add_argument("--requests", nargs="+", type=positive, default=[1, 8])
    parser.add_argument("--tokens", type=positive, default=12)
    parser.add_argument("--layers", type=positive, default=16)
    parser.add_argument("--rounds", type=positive, default=40)
    parser.add_argument("--section", type=json_object, default={}, help="keys of the afd section, as a JSON object")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.tokens < 2:
        parser.error("argument --tokens: expected at least 2, found 1: the first step computes the prompt")
    if not options.json:
        print(
            "family       requests  turns  native ms  split ms  exchange ms  exchanges/step  added ms/exchange  least"
            "    all",
            flush=True,
        )
    for family in options.family:
        for row in measure(family, options.layers, options.requests, options.tokens, options.rounds, options.section):
            if options.json:
                print(json.dumps(asdict(row)), flush=True)
            else:
                print(
                    f"{row.family:12} {row.requests:8} {row.turns:6} {row.native:10.2f} {row.split:9.2f}"
                    f" {row.exchange:12.3f} {row.exchanges_per_step:15} {row.added:18.3f} {row.added_at_least:6.3f}"
                    f" {row.added_all:6.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--engine"]:
        engine(*sys.argv[2:4])
    else:
        main()
