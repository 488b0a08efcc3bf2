"""Features of vLLM above and beside the model: answers of the split model equal native vLLM's, all of each answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from afd_workers.features import FEATURES
from tests.support import adapters
from tests.support.checkpoints import Checkpoint
from tests.support.features import Answers, Asking
from tests.support.servers import OPTIONS, forked, roles, section_of
from tools import toy_checkpoint
from tools.asks import LOW, SAMPLING, STOPS, TEXTS, Ask

pytestmark = pytest.mark.timeout(600)
CHUNK = 64
REPEATED = [[40, 41, 42, 43] * 8, *TEXTS]
DRAFTS = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}}
PREDICTOR = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}
COMPACT = {"backend": "xgrammar", "disable_any_whitespace": True}
COUNTED = {"disable_log_stats": False}


@dataclass(frozen=True, slots=True)
class Compared:
    """Answers by name."""

    native: Answers
    split: Answers


@dataclass(frozen=True, slots=True)
class Bench:
    """One FFN server's attention engines, one after another, each with native vLLM beside it."""

    folder: Path
    model: Path
    section: Mapping[str, object]

    def compare(
        self, asks: tuple[Ask, ...], options: Mapping[str, object], *,
        native: tuple[Path, tuple[Ask, ...], Mapping[str, object]] | None = None,
    ) -> Compared:  # fmt: skip
        """native: (checkpoint, questions, options) of the native engine, where they are not the same."""
        common = {"max_model_len": 512, "max_num_batched_tokens": CHUNK, "max_num_seqs": 8}
        other, others, beside = native or (self.model, asks, options)
        mine = {**common, **options, "model": str(self.model), "additional_config": self.section}
        split = Asking(self.folder, mine, asks)
        whole = Asking(self.folder, {**common, **beside, "model": str(other)}, others)
        return Compared(split=split.answers(), native=whole.answers())


@contextmanager
def bench(model: Path, folder: Path, *flags: str) -> Iterator[Bench]:
    """flags: of the FFN role, which is given the attention role's too, as whoever starts both from one script does."""
    attention, ffn = roles(model, (*OPTIONS, f"--max-num-batched-tokens={CHUNK}", *flags))
    with forked(ffn, folder):
        yield Bench(folder, model, section_of(attention))


@pytest.fixture(scope="module")
def qwen(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(checkpoint("qwen3-moe"), tmp_path_factory.mktemp("features")) as made:
        yield made


@pytest.fixture(scope="module")
def sampled(qwen: Bench) -> Compared:
    options = {"scheduling_policy": "priority", "async_scheduling": True, "structured_outputs_config": COMPACT}
    return qwen.compare(SAMPLING, options)


@pytest.fixture(scope="module")
def drafted(qwen: Bench) -> Compared:
    asks = (Ask("drafts of n-grams", REPEATED, {"max_tokens": 32}), Ask("drafts", kind="drafts"))
    return qwen.compare(asks, {**DRAFTS, **COUNTED})


@pytest.fixture(scope="module")
def embedded(qwen: Bench) -> Compared:
    return qwen.compare((Ask("embeddings", TEXTS, kind="embed"),), {"runner": "pooling", "convert": "embed"})


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """A predictor of the next but one token, which is a decoder layer with experts of its own."""
    folder = tmp_path_factory.mktemp("predictor")
    model = toy_checkpoint.make("deepseek-v3", folder / "model", layers=2, changes={"num_nextn_predict_layers": 1})
    asks = (Ask("drafts of a predictor", TEXTS, {"max_tokens": 32}), Ask("drafts", kind="drafts"))
    with bench(model, folder, f"--speculative-config={json.dumps(PREDICTOR['speculative_config'])}") as made:
        return made.compare(asks, {**PREDICTOR, **COUNTED})


@pytest.fixture(scope="module")
def adapted(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """Natively, vLLM has no adapters for models with experts on CPU: it runs the sum of both, all in float32."""
    folder, model = tmp_path_factory.mktemp("adapters"), checkpoint("qwen3-moe")
    own = [f"model.layers.{layer}.self_attn.{name}_proj" for layer in range(4) for name in "qkvo"]
    gate, expert = "model.layers.1.mlp.gate", "model.layers.1.mlp.experts.0.down_proj"
    attention, foreign, experts = (
        str(adapters.write(folder / name, model, layers))
        for name, layers in (("attention", own), ("gate", [*own, gate]), ("experts", [*own, expert]))
    )
    asks = (
        Ask("without", TEXTS), Ask("adapter", TEXTS, adapter=attention),
        Ask("gate", kind="adapter", adapter=foreign), Ask("experts", kind="adapter", adapter=experts),
        Ask("without again", TEXTS),
    )  # fmt: skip
    whole = adapters.merged(folder / "merged", model, Path(attention))
    with bench(model, folder, "--dtype=float32", "--enable-lora", f"--lora-modules=mine={attention}") as made:
        return made.compare(
            asks, {"enable_lora": True, "max_lora_rank": adapters.RANK, "dtype": "float32"},
            native=(whole, (Ask("adapter", TEXTS),), {"dtype": "float32"}),
        )  # fmt: skip


@pytest.fixture(scope="module")
def all_compared(
    sampled: Compared, drafted: Compared, embedded: Compared, predicted: Compared, adapted: Compared
) -> tuple[Compared, ...]:
    return sampled, drafted, embedded, predicted, adapted


@pytest.mark.parametrize("name", [name for feature in FEATURES for name in feature.shown])
def test_the_answers_are_the_native_ones(all_compared: tuple[Compared, ...], name: str) -> None:
    [one] = [each for each in all_compared if name in each.split]
    assert not isinstance(one.native[name], str), one.native[name]
    assert one.split[name] == one.native[name]


def texts(answer: object) -> list[str]:
    return [each["text"] for prompt in plain(answer) for each in prompt["outputs"]]


def plain(answer: object) -> list[Any]:
    assert isinstance(answer, list), answer
    return answer


def test_the_features_had_an_effect(sampled: Compared) -> None:
    found = sampled.split
    first = [prompt["outputs"][0] for prompt in plain(found["stop strings"])]
    assert {each["stop"] for each in first} & set("etao")
    assert all(each["stop"] in STOPS for [each] in (prompt["outputs"] for prompt in plain(found["stop ids"])))
    assert all(len({tuple(each["tokens"]) for each in prompt["outputs"]}) == 3 for prompt in plain(found["samples"]))
    assert all(isinstance(json.loads(text)["a"], bool) for text in texts(found["json"]))
    assert all(re.fullmatch("[a-f]{4,9}-[0-9]{3}", text) for text in texts(found["regex"]))
    assert set(texts(found["choice"])) <= {"north", "south"}
    assert set(texts(found["grammar"])) <= {"abe", "cde"}
    assert set(plain(found["allowed"])[0]["outputs"][0]["tokens"]) <= set(LOW)
    greedy = [prompt["outputs"][0]["tokens"] for prompt in plain(found["plain"])]
    for name in ("penalties", "bias", "allowed"):
        assert greedy[:2] != [prompt["outputs"][0]["tokens"] for prompt in plain(found[name])]
    assert all(prompt["cached"] >= CHUNK for prompt in plain(found["long prompts again"]))


def test_drafts_are_made_and_accepted_as_natively(drafted: Compared, predicted: Compared) -> None:
    for each in (drafted, predicted):
        counts = each.split["drafts"]
        assert counts == each.native["drafts"]
        assert isinstance(counts, dict)
        assert counts["vllm:spec_decode_num_draft_tokens"] > 0
    assert drafted.split["drafts"]["vllm:spec_decode_num_accepted_tokens"] > 0  # type: ignore[index]


def test_other_weights_are_refused_and_the_engine_goes_on(sampled: Compared) -> None:
    for call in ("reload_weights", "finish_weight_update"):
        assert re.fullmatch(
            rf"ValueError: Expected the weights to stay while AFD serves, found {call}: .* both roles .*checkpoint\.",
            str(sampled.split[call]),
        )
    assert sampled.split["plain again"] == sampled.split["plain"]


def test_an_adapter_of_the_ffn_part_is_refused_by_name(adapted: Compared) -> None:
    for name, layer in (("gate", "mlp.gate"), ("experts", "mlp.experts.0.down_proj")):
        assert layer in str(adapted.split[name])
        assert "expected target modules" in str(adapted.split[name])
    assert adapted.split["without again"] == adapted.split["without"] != adapted.split["adapter"]
