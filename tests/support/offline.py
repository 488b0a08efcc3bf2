"""Runs vLLM's offline engine in a process of its own: a job comes in as JSON on standard input, tokens go to a file.

python -m tests.support.offline RESULT < JOB
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Batch = list[list[int]]
_RUN_S = 300.0
#: One process, one thread: equal grouping of requests on both sides and no orphans.
ENV = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one engine produced. tokens, cached: per batch and prompt; cached counts prompt tokens from the cache.

    worker, model: class names, empty for an engine whose workers are processes. figures: the first worker's.
    """

    tokens: list[Batch]
    cached: list[list[int]]
    worker: str
    scheduler: str
    model: str
    figures: Mapping[str, float] | None


class Run:
    """A started engine process; ``outcome`` waits for it."""

    def __init__(
        self, folder: Path, options: Mapping[str, object], batches: Sequence[Batch], *,
        tokens: int, env: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._result = folder / f"result-{len(list(folder.iterdir()))}.json"
        self._result.touch()
        self._log = self._result.with_suffix(".log")
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.offline", str(self._result)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **ENV, **(env or {})},
                text=True,
            )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"options": dict(options), "batches": batches, "tokens": tokens}))
        self._process.stdin.close()

    def outcome(self) -> Outcome:
        """The result; an AssertionError with the end of the log when the engine failed or took too long."""
        try:
            code = self._process.wait(_RUN_S)
        finally:
            self._process.kill()
        assert code == 0, self._log.read_text()[-4000:]
        return Outcome(**json.loads(self._result.read_text()))

    def failure(self) -> str:
        """The log of an engine that was expected to fail."""
        try:
            code = self._process.wait(_RUN_S)
        finally:
            self._process.kill()
        assert code != 0, "the engine was expected to fail, and it succeeded"
        return self._log.read_text()


def main(result: Path) -> None:
    """Generates all batches greedily, one ``generate`` call each."""
    from vllm import LLM, SamplingParams, TokensPrompt

    job = json.load(sys.stdin)
    llm = LLM(**{"enforce_eager": True, "dtype": "bfloat16", "kv_cache_memory_bytes": 64 << 20, **job["options"]})
    count = job["tokens"]  # as the HTTP client asks: min_tokens bars the end token, where ignore_eos goes on after it
    sampling = SamplingParams(temperature=0, min_tokens=count, max_tokens=count, ignore_eos=True, detokenize=False)
    outputs = [
        llm.generate([TokensPrompt(prompt_token_ids=ids) for ids in batch], sampling, use_tqdm=False)
        for batch in job["batches"]
    ]
    driver = getattr(llm.llm_engine.engine_core.engine_core.model_executor, "driver_worker", None)
    worker = None if driver is None else driver.worker
    config = llm.llm_engine.vllm_config
    outcome = {
        "tokens": [[list(output.outputs[0].token_ids) for output in batch] for batch in outputs],
        "cached": [[output.num_cached_tokens or 0 for output in batch] for batch in outputs],
        "worker": "" if worker is None else f"{type(worker).__module__}.{type(worker).__qualname__}",
        "scheduler": str(config.scheduler_config.get_scheduler_cls()),
        "model": "" if worker is None else type(worker.get_model()).__name__,
        "figures": llm.collective_rpc("exchange_figures")[0] if "afd" in config.additional_config else None,
    }
    result.write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
