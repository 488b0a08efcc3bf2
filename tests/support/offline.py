"""Runs vLLM's offline engine in a process of its own: a job comes in as a JSON file, tokens go to another.

python -m tests.support.offline JOB RESULT
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.forks import ENV, Fork

if TYPE_CHECKING:
    from vllm.logprobs import PromptLogprobs

Batch = list[list[int]]
BATCH_DONE = "batch {} of {} is done"  # in the engine's log
_RUN_S = 300.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one engine produced. tokens, cached: per batch and prompt; cached counts prompt tokens from the cache.

    worker, model: class names, empty for an engine whose workers are processes. figures: the first worker's.
    logprobs: per batch, prompt and position those of the whole vocabulary, if the run was asked for them.
    """

    tokens: list[Batch]
    cached: list[list[int]]
    worker: str
    scheduler: str
    model: str
    figures: Mapping[str, float] | None
    logprobs: list[list[list[list[float]]]]


class Run:
    """A started engine process; ``outcome`` waits for it."""

    def __init__(
        self, folder: Path, options: Mapping[str, object], batches: Sequence[Batch], *,
        tokens: int, env: Mapping[str, str] | None = None, logprobs: bool = False,
    ) -> None:  # fmt: skip
        self._result = folder / f"result-{len(list(folder.iterdir()))}.json"
        job = self._result.with_suffix(".job")
        order = {"options": dict(options), "batches": batches, "tokens": tokens, "logprobs": logprobs}
        job.write_text(json.dumps(order))
        self._fork = Fork(
            "tests.support.offline",
            [str(job), str(self._result)],
            {**os.environ, **ENV, **(env or {})},
            self._result.with_suffix(".log"),
        )

    def end(self) -> None:
        """Ends the engine if it runs."""
        self._fork.end()

    def lines(self) -> list[str]:
        """The engine's log so far."""
        return self._fork.lines()

    def outcome(self) -> Outcome:
        """The result; an AssertionError with the end of the log when the engine failed or took too long."""
        try:
            code = self._fork.wait(_RUN_S)
        finally:
            self._fork.end()
        assert code == 0, "\n".join([f"exit status {code}", *self.lines()[-60:]])
        return Outcome(**json.loads(self._result.read_text()))


def main(order: Path, result: Path) -> None:
    """Generates all batches greedily, one ``generate`` call each."""
    from vllm import LLM, SamplingParams, TokensPrompt

    job = json.loads(order.read_text())
    options = {"enforce_eager": True, "dtype": "bfloat16", "kv_cache_memory_bytes": 64 << 20, "max_logprobs": -1}
    llm = LLM(**{**options, **job["options"]})
    count = job["tokens"]  # as the HTTP client asks: min_tokens bars the end token, where ignore_eos goes on after it
    sampling = SamplingParams(temperature=0, min_tokens=count, max_tokens=count, ignore_eos=True, detokenize=False,
                              prompt_logprobs=-1 if job["logprobs"] else None)  # fmt: skip
    outputs = []
    for batch in job["batches"]:
        outputs.append(llm.generate([TokensPrompt(prompt_token_ids=ids) for ids in batch], sampling, use_tqdm=False))
        print(BATCH_DONE.format(len(outputs), len(job["batches"])), flush=True)
    driver = getattr(llm.llm_engine.engine_core.engine_core.model_executor, "driver_worker", None)
    worker = None if driver is None else driver.worker
    config = llm.llm_engine.vllm_config
    outcome = {
        "tokens": [[list(output.outputs[0].token_ids) for output in batch] for batch in outputs],
        "cached": [[output.num_cached_tokens or 0 for output in batch] for batch in outputs],
        "worker": "" if worker is None else f"{type(worker).__module__}.{type(worker).__qualname__}",
        "scheduler": str(config.scheduler_config.get_scheduler_cls()),
        "model": "" if worker is None else type(worker.get_model()).__name__,
        "logprobs": [[_logprobs(output.prompt_logprobs) for output in batch] for batch in outputs],
        "figures": llm.collective_rpc("exchange_figures")[0] if "afd" in config.additional_config else None,
    }
    result.write_text(json.dumps(outcome))


def _logprobs(found: PromptLogprobs | None) -> list[list[float]]:
    """By token id; vLLM has none for the first token."""
    return [[each[token].logprob for token in sorted(each)] for each in found or () if each]


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
