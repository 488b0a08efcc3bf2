"""Asks one offline engine, in a process of its own, for whatever vLLM's features give, and keeps all of each answer.

python -m tests.support.features JOB RESULT
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.support.forks import ENV, Fork
from tools.asks import Ask, answer

_RUN_S = 300.0
Answers = Mapping[str, object]


class Asking:
    """A started engine process; ``answers`` waits for it."""

    def __init__(self, folder: Path, options: Mapping[str, object], asks: Sequence[Ask]) -> None:
        self._result = folder / f"answers-{len(list(folder.iterdir()))}.json"
        job = self._result.with_suffix(".job")
        job.write_text(json.dumps({"options": dict(options), "asks": [asdict(ask) for ask in asks]}))
        self._fork = Fork(
            "tests.support.features", [str(job), str(self._result)], {**os.environ, **ENV},
            self._result.with_suffix(".log"),
        )  # fmt: skip

    def answers(self) -> Answers:
        """By name; an AssertionError with the end of the log when the engine failed or took too long."""
        try:
            code = self._fork.wait(_RUN_S)
        finally:
            self._fork.end()
        assert code == 0, "\n".join([f"exit status {code}", *self._fork.lines()[-60:]])
        found: Answers = json.loads(self._result.read_text())
        return found


def main(order: Path, result: Path) -> None:
    """Asks everything in turn."""
    from vllm import LLM

    faulthandler.dump_traceback_later(_RUN_S / 2)  # where a hanging engine hangs
    job = json.loads(order.read_text())
    _verify_drafts()
    llm = LLM(**{"enforce_eager": True, "dtype": "bfloat16", "kv_cache_memory_bytes": 64 << 20, **job["options"]})
    answers: dict[str, object] = {}
    for each in job["asks"]:
        ask = Ask(**each)
        try:
            answers[ask.name] = answer(llm, ask)
        except (ValueError, RuntimeError, NotImplementedError) as error:
            answers[ask.name] = f"{type(error).__name__}: {error}"
    result.write_text(json.dumps(answers))


def _verify_drafts() -> None:
    """vLLM's kernels that verify drafts on a CPU are put where nothing looks for them: here they are found."""
    from vllm.utils import cpu_triton_utils as kernels
    from vllm.v1.sample import rejection_sampler as sampler

    for name in ("rejection_greedy_sample", "rejection_random_sample", "expand", "sample_recovered_tokens"):
        owner, kernel = getattr(sampler, f"_{name}", None), getattr(kernels, f"{name}_kernel", None)
        if owner is not None and kernel is not None:  # 0.32 puts them right itself
            owner.kernel = kernel


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
