"""How far two engines agree where they cannot be equal: tokens in common, and how much their logits differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tools.gpu.children import Child

ANSWER_S = 120.0
LARGEST = 5


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one batch: token ids per prompt, and the largest raw logits at each of them."""

    tokens: list[list[int]]
    logits: list[list[dict[str, float]]]


def ask(child: Child, prompts: Sequence[Sequence[int]], count: int) -> Answer:
    """Greedy tokens of all prompts at once; the engine's logprobs_mode must be raw_logits."""
    job = {"op": "tokens", "prompts": prompts, "count": count, "logits": LARGEST}
    answer = child.ask(job, ANSWER_S)
    return Answer(answer["tokens"], answer["logits"])  # type: ignore[arg-type]


def joined(*parts: Answer) -> Answer:
    """Batches one after another as one."""
    return Answer([each for part in parts for each in part.tokens], [each for part in parts for each in part.logits])


def line(name: str, expected: Answer, found: Answer) -> str:
    """Whole prompts, tokens up to each prompt's first difference, first tokens, and the largest logit difference.

    Logits are compared as long as both saw the same tokens before, of the ids that are among the largest on both sides.
    """
    whole = first = alike = total = 0
    most = 0.0
    for one, other, left, right in zip(expected.tokens, found.tokens, expected.logits, found.logits, strict=True):
        same = next((at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))
        whole, first, alike, total = whole + (one == other), first + (same > 0), alike + same, total + len(one)
        for a, b in zip(left[: same + 1], right[: same + 1], strict=True):
            most = max(most, *(abs(a[token] - b[token]) for token in a.keys() & b.keys()), 0.0)
    count = len(expected.tokens)
    return (
        f"{name:44} prompts {whole}/{count}  first tokens {first}/{count}  tokens {alike}/{total}"
        f"  max logit difference {most:.4f}"
    )


def first_tokens(expected: Answer, found: Answer) -> float:
    """The share of prompts whose first token is equal."""
    pairs = list(zip(expected.tokens, found.tokens, strict=True))
    return sum(one[0] == other[0] for one, other in pairs) / len(pairs)
