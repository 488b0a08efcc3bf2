"""One offline vLLM engine in a process of its own, native or either role, that does jobs from standard input.

python -m tools.gpu.engine '{"options": {...}}'   (see Engine for the jobs)
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tools.gpu.children import answers, say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


DUMP = "AFD_GPU_DUMP_S"  # seconds of start-up after which every thread's stack goes into the log, for what hangs
JOB_S = 40.0  # the same for a job


class Worker(Protocol):
    """What jobs ask of the engine's worker."""

    def exchange_figures(self) -> dict[str, float]:
        """See afd_workers.attention."""

    def ffn_figures(self) -> dict[str, float]:
        """See afd_workers.cuda."""

    def failover_figures(self) -> dict[str, float]:
        """See afd_workers.cuda."""


class Engine:
    """jobs: {"op": "tokens", "prompts", "count"} -> tokens, with "logits": n also the n largest of each;
    {"op": "time", "rows", "count", "prompt"} -> seconds;
    {"op": "stream", "prompts", "count", "mark", "at"} -> tokens and when they came, see stream;
    {"op": "figures"} -> what the role counted; {"op": "alone", "rows"} -> milliseconds of the FFN role's layers
    on random rows, with "kept": 1 on those of the last batch after {"op": "watch", "rows", "prompt"};
    {"op": "guard"} -> microseconds per step of what lets attention run it again, of its host and of the device;
    {"op": "graph", "rows"} -> milliseconds of a step's graph alone, which must not wait for another role;
    {"op": "trace_start"}, {"op": "trace_stop", "file"} -> a profiler trace of what ran in between.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        from vllm import LLM

        from afd_connectors import registry

        registry.BUILTIN["none"] = "tools.gpu.no_transport:NoTransport"  # attention alone
        self._llm = LLM(**options)
        self._worker = self._llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker

    def tokens(self, prompts: Sequence[Sequence[int]], count: int, logits: int | None = None) -> dict[str, object]:
        """Greedy tokens of all prompts at once; logits need an engine whose logprobs_mode is raw_logits."""
        from vllm import SamplingParams, TokensPrompt

        sampling = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False, logprobs=logits)
        started = time.perf_counter()
        found = self._llm.generate([TokensPrompt(prompt_token_ids=list(p)) for p in prompts], sampling, use_tqdm=False)
        seconds = time.perf_counter() - started
        answer: dict[str, object] = {"tokens": [list(each.outputs[0].token_ids) for each in found], "seconds": seconds}
        if logits is not None:
            answer["logits"] = [
                [
                    {token: round(entry.logprob, 5) for token, entry in place.items()}
                    for place in each.outputs[0].logprobs
                ]
                for each in found
            ]
        return answer

    def stream(self, prompts: Sequence[Sequence[int]], count: int, mark: str = "", at: int = 0) -> dict[str, object]:
        """Greedy tokens of all prompts at once, and time.monotonic() of each step that brought some.

        mark: a file that is written as soon as every prompt has `at` tokens.
        """
        from vllm import SamplingParams, TokensPrompt

        engine, marked = self._llm.llm_engine, not mark
        sampling = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
        found: dict[str, list[int]] = {}
        for number, prompt in enumerate(prompts):
            name = f"{time.monotonic_ns()}-{number}"
            engine.add_request(name, TokensPrompt(prompt_token_ids=[*prompt]), sampling)
            found[name] = []
        times = []
        while engine.has_unfinished_requests():
            outputs = engine.step()
            for output in outputs:
                found[output.request_id] = list(output.outputs[0].token_ids)
            if outputs:
                times.append(time.monotonic())
            if not marked and all(len(tokens) >= at for tokens in found.values()):
                Path(mark).touch()
                marked = True
        return {"tokens": list(found.values()), "times": times}

    def time(self, rows: int, count: int, prompt: int) -> dict[str, object]:
        """Seconds for `count` tokens of `rows` prompts of `prompt` tokens."""
        prompts = [[100 + (row * 131 + place * 17) % 800 for place in range(prompt)] for row in range(rows)]
        return {"seconds": self.tokens(prompts, count)["seconds"]}

    def figures(self) -> dict[str, object]:
        """What the role counted so far; nothing for a native engine."""
        told: dict[str, object] = {}
        for name in ("exchange_figures", "ffn_figures", "failover_figures"):
            if hasattr(self._worker, name):
                told |= getattr(self._worker, name)()
        return told

    def watch(self, rows: int, prompt: int) -> dict[str, object]:
        """From now on an FFN role keeps the rows of the last tokens of `rows` prompts, as they come to each layer."""
        from tools.gpu.ffn_alone import watch

        self._kept = watch(self._worker._steps, rows, prompt)
        return {}

    def alone(self, rows: int, kept: int = 0) -> dict[str, object]:
        """Milliseconds of all layers of the FFN role from a graph, on rows that nobody sends."""
        from tools.gpu.ffn_alone import milliseconds

        return {"ms": milliseconds(self._worker, rows, self._kept if kept else {})}

    def graph(self, rows: int) -> dict[str, object]:
        """Milliseconds of the device for one graph of a native engine or of attention whose exchanges are copies."""
        from tools.gpu.graph_alone import milliseconds

        return {"ms": milliseconds(self._worker.model_runner.cudagraph_manager.graphs, rows)}

    def guard(self) -> dict[str, object]:
        """What attention pays per step for being able to run it again."""
        from tools.gpu.guard_alone import microseconds

        return dict(microseconds(self._worker))

    def trace_start(self) -> dict[str, object]:
        """From now on the device's work is recorded, and the calls of every thread that cause it."""
        from torch.profiler import ProfilerActivity, profile

        self._profile = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
        self._profile.start()
        return {}

    def trace_stop(self, file: str) -> dict[str, object]:
        """Writes the record as a gzipped Chrome trace."""
        self._profile.stop()
        self._profile.export_chrome_trace(file)
        return {"file": file}

    def do(self, job: dict[str, object]) -> dict[str, object]:
        """Dispatches one job."""
        operation = str(job.pop("op"))
        answer: dict[str, object] = getattr(self, operation)(**job)
        return answer


def main() -> None:
    """Says that it is ready, then answers one job per line until standard input ends."""
    out = answers()
    watch = DUMP in os.environ
    if watch:
        faulthandler.dump_traceback_later(float(os.environ[DUMP]))
    started = time.perf_counter()
    engine = Engine(json.loads(sys.argv[1])["options"])
    say(out, {"ready": time.perf_counter() - started})
    faulthandler.cancel_dump_traceback_later()
    for line in sys.stdin:
        if watch:
            faulthandler.dump_traceback_later(JOB_S)
        say(out, engine.do(json.loads(line)))
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
