"""Asks one offline engine, in a process of its own, for whatever vLLM's features give, and keeps all of each answer.

python -m tests.support.features JOB RESULT
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from zlib import crc32

from tests.support.forks import ENV, Fork

if TYPE_CHECKING:
    from vllm import LLM, RequestOutput, SamplingParams

_RUN_S = 300.0
_DRAFTS = ("vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens")
Answers = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Ask:
    """One call of the engine; an error is its answer too.

    sampling: of SamplingParams; for "beam" of BeamSearchParams, for "rpc" the arguments. method: of "rpc".
    adapter: folder of a LoRA adapter that all prompts use; "adapter" only loads it. priority: one number per prompt.
    "drafts": how many tokens were drafted and accepted so far.
    """

    name: str
    prompts: Sequence[Sequence[int]] = ()
    sampling: Mapping[str, object] = field(default_factory=dict)
    kind: Literal["generate", "beam", "embed", "adapter", "drafts", "rpc"] = "generate"
    method: str = ""
    adapter: str | None = None
    priority: Sequence[int] | None = None


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
            answers[ask.name] = _answer(llm, ask)
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


def _answer(llm: LLM, ask: Ask) -> object:
    from vllm import TokensPrompt
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import BeamSearchParams

    prompts = [TokensPrompt(prompt_token_ids=list(ids)) for ids in ask.prompts]
    if ask.kind == "rpc":
        return llm.collective_rpc(ask.method, kwargs=dict(ask.sampling))
    if ask.kind == "drafts":
        return {each.name: each.value for each in llm.get_metrics() if each.name in _DRAFTS}
    if ask.kind == "beam":
        found = llm.beam_search(prompts, BeamSearchParams(**ask.sampling))
        return [[(beam.tokens, beam.cum_logprob) for beam in each.sequences] for each in found]
    if ask.kind == "embed":
        return [each.outputs.embedding for each in llm.embed(prompts, use_tqdm=False)]
    adapter = None
    if ask.adapter is not None:
        adapter = LoRARequest(ask.adapter, 1 + crc32(ask.adapter.encode()) % 1000, ask.adapter)
    if ask.kind == "adapter":
        return llm.llm_engine.add_lora(adapter)
    outputs = llm.generate(
        prompts, _sampling(ask), use_tqdm=False, lora_request=adapter,
        priority=None if ask.priority is None else list(ask.priority),
    )  # fmt: skip
    return [_plain(output) for output in outputs]


def _sampling(ask: Ask) -> SamplingParams:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    given = {"temperature": 0.0, "max_tokens": 24, **ask.sampling}
    if "structured_outputs" in given:
        given["structured_outputs"] = StructuredOutputsParams(**given["structured_outputs"])
    if "logit_bias" in given:
        given["logit_bias"] = {int(token): bias for token, bias in given["logit_bias"].items()}
    return SamplingParams(**given)


def _plain(output: RequestOutput) -> object:
    """All that a request gave and that does not depend on when."""
    return {
        "prompt": _logprobs(output.prompt_logprobs),
        "cached": output.num_cached_tokens,
        "outputs": [
            {
                "tokens": list(each.token_ids), "text": each.text, "finish": each.finish_reason,
                "stop": each.stop_reason, "logprobs": _logprobs(each.logprobs),
            }
            for each in output.outputs
        ],
    }  # fmt: skip


def _logprobs(positions: Sequence[Mapping[int, object] | None] | None) -> object:
    if positions is None:
        return None
    return [
        None if each is None else {token: (entry.logprob, entry.rank) for token, entry in each.items()}
        for each in positions
    ]


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
