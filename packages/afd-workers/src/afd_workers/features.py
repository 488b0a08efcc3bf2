"""What vLLM's features do together with AFD: each is compared with native vLLM by a test, or refused with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: (engine option, the value that AFD needs, what to do instead); see `refusals.check_on`.
Option = tuple[str, object, str]
EQUAL, NOT_RUN = "equal to native", "not run"


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature of vLLM as users know it.

    shown: what tests/vllm/workers/test_features.py compares on CPU, by name; none where the feature is refused.
    cpu, cuda: what the table says of a device where that is not what the other fields say. Without, CUDA is equal where
    all that is shown on CPU is among SHOWN_ON_CUDA.
    refused: on either role and every device. on_cuda: refused there only, as nobody compared it there.
    calls: methods of a worker that are refused when they are called. methods: the speculation that is not refused.
    note: why, or what to know.
    """

    name: str
    shown: tuple[str, ...] = ()
    cpu: str = ""
    cuda: str = ""
    refused: tuple[Option, ...] = ()
    on_cuda: tuple[Option, ...] = ()
    calls: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    note: str = ""


def _speculation(*, instead: str) -> tuple[Option, ...]:
    return tuple((name, None, instead) for name in ("speculative_config", "spec_method", "spec_model", "spec_tokens"))


_NO_SPECULATION = _speculation(instead="leave speculative decoding out, it was compared with native vLLM on CPU only")

#: What `python -m tools.gpu.features` found equal on H200s, or rightly refused, eagerly and from graphs, by name.
SHOWN_ON_CUDA: frozenset[str] = frozenset(
    {
        "plain",
        "logprobs",
        "samples",
        "stop strings",
        "stop ids",
        "penalties",
        "bias",
        "allowed",
        "json",
        "regex",
        "choice",
        "grammar",
        "beam",
        "priority",
        "long prompts",
        "long prompts again",
        "reload_weights",
        "finish_weight_update",
        "plain again",
    }
)

#: Of features whose comparison needs a vLLM that is put right first.
_REBOUND = "equal to native with vLLM's kernels rebound as the tests do"

FEATURES: tuple[Feature, ...] = (
    Feature("prefix caching, chunked prefill", shown=("plain", "long prompts", "long prompts again")),
    Feature("logprobs of samples and prompts", shown=("logprobs",)),
    Feature("several samples per prompt, seeds, top-k, top-p, min-p", shown=("samples",)),
    Feature("stop strings", shown=("stop strings",)),
    Feature("stop token ids, min_tokens", shown=("stop ids",)),
    Feature("penalties", shown=("penalties",)),
    Feature("logit bias, bad words, allowed token ids", shown=("bias", "allowed")),
    Feature("structured output", shown=("json", "regex", "choice", "grammar")),
    Feature("beam search", shown=("beam",)),
    Feature("request priority", shown=("priority",)),
    Feature(
        "async scheduling",
        cpu="switched off by vLLM",
        cuda="equal to native",
        note="On CUDA it is vLLM's default and on in all that `tools.gpu.parity` and `tools.gpu.kill_ffn` compare.",
    ),
    Feature("embeddings (`--runner pooling`)", shown=("embeddings",)),
    Feature(
        "n-gram speculation",
        shown=("drafts of n-grams",),
        cpu=_REBOUND,
        on_cuda=_NO_SPECULATION,
        note="The drafter runs on attention. On CPU vLLM 0.30 finds its kernels that verify drafts only with Triton "
        "for CPU, natively too; the tests put them in place.",
    ),
    Feature(
        "multi-token prediction (MTP)",
        shown=("drafts of a predictor",),
        cpu=_REBOUND,
        on_cuda=_NO_SPECULATION,
        note="A drafter runs whole on attention, its experts included; on CPU as above.",
    ),
    Feature(
        "other drafters (EAGLE, draft models)",
        methods=("ngram", "mtp"),
        note="Nobody compared them with native vLLM.",
    ),
    Feature(
        "LoRA on attention projections",
        shown=("adapter",),
        on_cuda=(("enable_lora", False, "leave LoRA out, it was compared with native vLLM on CPU only"),),
        note="Where native vLLM has no LoRA for models with experts (CPU), the comparison is with merged weights. "
        "An adapter that holds layers of the FFN part (gate, experts, MLP) is refused when it is loaded; with "
        "`shared_experts_on_attention` or `dense_layers_on_attention` LoRA is refused at start-up.",
    ),
    Feature(
        "sleep mode",
        refused=(("enable_sleep_mode", False, "leave it out, stop both servers instead of letting them sleep"),),
        note="One role would sleep while the other holds its memory.",
    ),
    Feature(
        "update or reload of weights",
        refused=(("weight_transfer_config", None, "leave it out, restart both roles with the new checkpoint"),),
        calls=("reload_weights", "init_weight_transfer_engine", "start_weight_update", "start_draft_weight_update",
               "update_weights", "finish_weight_update"),
        note="The other role would go on with the old weights.",
    ),
    Feature(
        "returned routed experts",
        refused=(("enable_return_routed_experts", False, "leave it out, it is the FFN role that chooses experts"),),
        note="Attention, which answers requests, does not see which experts ran.",
    ),
)  # fmt: skip

#: vLLM's names of the ways to speculate that were compared.
COMPARED_METHODS: tuple[str, ...] = tuple(method for feature in FEATURES for method in feature.methods)
REFUSED: tuple[Option, ...] = tuple(option for feature in FEATURES for option in feature.refused)
REFUSED_ON_CUDA: tuple[Option, ...] = tuple(dict.fromkeys(option for feature in FEATURES for option in feature.on_cuda))
REFUSED_CALLS: tuple[str, ...] = tuple(call for feature in FEATURES for call in feature.calls)

#: What the FFN role needs nothing of: it starts without, so that both roles may be given the same options.
ATTENTION_ONLY: Mapping[str, object] = {
    **{name: value for name, value, _ in _NO_SPECULATION},
    "enable_lora": False,
}


def markdown() -> str:
    """The table of docs/features.md."""
    rows = [("feature", "CPU", "CUDA", "note"), ("---",) * 4]
    for feature in FEATURES:
        if feature.shown or feature.cpu:
            cpu, cuda = feature.cpu or EQUAL, feature.cuda or _on_cuda(feature)
        else:
            cpu = cuda = "refused"
        rows.append((feature.name, cpu, cuda, feature.note))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def _on_cuda(feature: Feature) -> str:
    if feature.on_cuda:
        return "refused"
    return EQUAL if SHOWN_ON_CUDA.issuperset(feature.shown) else NOT_RUN
