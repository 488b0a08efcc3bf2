"""What an engine is asked so that its answers show vLLM's features, and all that it answers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal
from zlib import crc32

from afd_workers.features import REFUSED_CALLS

if TYPE_CHECKING:
    from vllm import LLM, RequestOutput, SamplingParams

_DRAFTS = ("vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens")


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


def answer(llm: LLM, ask: Ask) -> object:
    """All that the engine gives, as JSON can have it; raises what the engine raises."""
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


TEXTS = [[ord(letter) for letter in text] for text in ("hello there", "one two", "north", "a list of")]
LOW = list(range(2, 160))
STOPS = LOW[:120]  # vLLM's Model Runner V2 takes up to 128 in all, and is of no use after a request with more
_CHANCE = random.Random(3)
_HEAD = [_CHANCE.randrange(2, 256) for _ in range(130)]
#: Longer than a chunk, with a beginning that prefix caching can find again.
LONG = [_HEAD + [_CHANCE.randrange(2, 256) for _ in range(count)] for count in (20, 45, 70)]
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}


def _structured(name: str, **what: object) -> Ask:
    return Ask(name, TEXTS[:2], {"structured_outputs": what, "max_tokens": 40})


SAMPLING = (
    Ask("plain", TEXTS),
    Ask("logprobs", TEXTS[:2], {"logprobs": 5, "prompt_logprobs": 3}),
    Ask("samples", TEXTS[:2], {"n": 3, "temperature": 0.9, "top_p": 0.95, "top_k": 40, "min_p": 0.01, "seed": 7}),
    Ask("stop strings", TEXTS, {"stop": ["e", "t", "a", "o"], "max_tokens": 48}),
    Ask("stop ids", TEXTS, {"stop_token_ids": STOPS, "min_tokens": 3}),
    Ask("penalties", TEXTS[:2], {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2}),
    Ask("bias", TEXTS[:2], {"logit_bias": {"70": 3.0}, "bad_words": ["e"]}),
    Ask("allowed", TEXTS[:2], {"allowed_token_ids": LOW}),
    _structured("json", json=SCHEMA),
    _structured("regex", regex="[a-f]{4,9}-[0-9]{3}"),
    _structured("choice", choice=["north", "south"]),
    _structured("grammar", grammar='root ::= ("ab" | "cd") "e"'),
    Ask("beam", TEXTS[:2], {"beam_width": 3, "max_tokens": 8}, kind="beam"),
    Ask("priority", TEXTS, priority=[3, 2, 1, 0]),
    Ask("long prompts", LONG),
    Ask("long prompts again", LONG),
    *(Ask(call, kind="rpc", method=call) for call in REFUSED_CALLS if call.startswith(("reload", "finish"))),
    Ask("plain again", TEXTS),
)
