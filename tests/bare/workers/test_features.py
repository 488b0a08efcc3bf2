"""The features of vLLM are listed once: each is compared or refused, never both, and the document says the same."""

from __future__ import annotations

import pytest

from afd_workers.features import (
    ATTENTION_ONLY,
    COMPARED_METHODS,
    EQUAL,
    FEATURES,
    NOT_RUN,
    REFUSED,
    REFUSED_CALLS,
    REFUSED_ON_CUDA,
    SHOWN_ON_CUDA,
    Feature,
    markdown,
)
from afd_workers.fixed import FixedWeights
from tools import tables
from tools.asks import SAMPLING

BY_NAME = {feature.name: feature for feature in FEATURES}


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_each_is_compared_or_refused_with_a_reason(feature: Feature) -> None:
    states = (feature.shown, feature.refused or feature.calls or feature.methods, feature.cuda)
    assert sum(map(bool, states)) == 1
    assert not feature.cpu or feature.note
    assert not feature.refused or feature.note
    assert not (feature.refused and feature.on_cuda)


def test_what_was_seen_on_cuda_is_what_the_tool_asks() -> None:
    assert {ask.name for ask in SAMPLING} >= SHOWN_ON_CUDA


def test_names_and_comparisons_are_listed_once() -> None:
    shown = [name for feature in FEATURES for name in feature.shown]
    assert len(BY_NAME) == len(FEATURES)
    assert len(set(shown)) == len(shown)


def test_no_option_is_refused_twice_and_attention_keeps_what_ffn_starts_without() -> None:
    options = [option for option, _, _ in (*REFUSED, *REFUSED_ON_CUDA)]
    assert len(set(options)) == len(options)
    assert not set(ATTENTION_ONLY) & {option for option, _, _ in REFUSED}


def test_the_table_claims_no_more_than_was_compared() -> None:
    rows = {row.split(" | ")[0].removeprefix("| "): row.split(" | ") for row in markdown().splitlines()}
    assert rows["async scheduling"][1:3] == ["switched off by vLLM", "equal to native"]
    for feature in FEATURES:
        seen = bool(feature.shown) and SHOWN_ON_CUDA.issuperset(feature.shown)
        assert rows[feature.name][2] in ({EQUAL} if seen or feature.cuda else {NOT_RUN, "refused"})
        assert not (seen and feature.on_cuda)
    assert rows["embeddings (`--runner pooling`)"][2] == NOT_RUN
    for name in ("n-gram speculation", "multi-token prediction (MTP)"):
        assert rows[name][1].startswith("equal to native with vLLM's kernels rebound")
    assert rows["stop strings"][1] == "equal to native"
    assert rows["other drafters (EAGLE, draft models)"][1:3] == ["refused", "refused"]
    assert COMPARED_METHODS == ("ngram", "mtp")


@pytest.mark.parametrize("call", REFUSED_CALLS)
def test_every_refused_call_says_why(call: str) -> None:
    with pytest.raises(ValueError, match=rf"found {call}: the other role .* restart both roles"):
        getattr(FixedWeights(), call)(weights_path="elsewhere")


def test_the_document_is_current() -> None:
    assert (tables.ROOT / "docs" / "features.md").read_text() == tables.features(), "run python tools/tables.py"
