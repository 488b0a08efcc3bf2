"""The features of vLLM are listed once: each is compared or refused, never both, and the document says the same."""

from __future__ import annotations

import pytest

from afd_workers.features import ATTENTION_ONLY, FEATURES, REFUSED, REFUSED_CALLS, REFUSED_ON_CUDA, Feature
from afd_workers.fixed import FixedWeights
from tools import tables

BY_NAME = {feature.name: feature for feature in FEATURES}


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_each_is_compared_or_refused_with_a_reason(feature: Feature) -> None:
    assert bool(feature.shown) != bool(feature.refused or feature.calls or feature.methods)
    assert not feature.refused or feature.note
    assert not (feature.refused and feature.on_cuda)


def test_names_and_comparisons_are_listed_once() -> None:
    shown = [name for feature in FEATURES for name in feature.shown]
    assert len(BY_NAME) == len(FEATURES)
    assert len(set(shown)) == len(shown)


def test_no_option_is_refused_twice_and_attention_keeps_what_ffn_starts_without() -> None:
    options = [option for option, _, _ in (*REFUSED, *REFUSED_ON_CUDA)]
    assert len(set(options)) == len(options)
    assert not set(ATTENTION_ONLY) & {option for option, _, _ in REFUSED}


@pytest.mark.parametrize("call", REFUSED_CALLS)
def test_every_refused_call_says_why(call: str) -> None:
    with pytest.raises(ValueError, match=rf"found {call}: the other role .* restart both roles"):
        getattr(FixedWeights(), call)(weights_path="elsewhere")


def test_the_document_is_current() -> None:
    assert (tables.ROOT / "docs" / "features.md").read_text() == tables.features(), "run python tools/tables.py"
