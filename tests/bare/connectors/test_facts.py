"""Facts agree or name the first field that does not; what a peer sends is checked, whatever it is."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_connectors import ConnectorError, Facts, HandshakeRefused
from afd_connectors.agreement import disagreement

FACTS = Facts("0.1.0", "0.30.0", "digest", "bfloat16", 128, 27, 0, "ffn", 1, (1, 2, 4), 2, 1)
OTHERS: dict[str, object] = {
    "afd_version": "0.2.0",
    "vllm_version": "0.31.0",
    "model_digest": "other",
    "dtype": "float16",
    "hidden": 256,
    "layers": 28,
    "router": 64,
    "gate": "attention",
    "stages": 2,
    "graph_sizes": (1, 2),
    "num_attention": 3,
    "num_ffn": 2,
    "tokens": 99,
    "shared": "attention",
    "dense": "attention",
    "wire_dtype": "fp8",
    "protocol": 3,
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def test_every_field_is_compared() -> None:
    assert set(OTHERS) == {field.name for field in fields(Facts)}
    for name, value in OTHERS.items():
        other = replace(FACTS, **{name: value})
        assert FACTS.difference(other) == (name, getattr(FACTS, name), value)
        sentence = disagreement(FACTS, other, 3, 1)
        assert sentence is not None
        assert f"disagree on {name}: attention has {getattr(FACTS, name)!r}, FFN has {value!r}" in sentence
    assert FACTS.difference(FACTS) is None
    assert disagreement(FACTS, FACTS, 0, 0) is None


@given(
    st.builds(
        Facts,
        st.text(),
        st.text(),
        st.text(),
        st.text(),
        *[st.integers()] * 3,
        st.sampled_from(["attention", "ffn"]),
        st.integers(),
        st.lists(st.integers()).map(tuple),
        st.integers(),
        st.integers(),
        st.integers(),
        *[st.sampled_from(["attention", "ffn"])] * 2,
    )
)
def test_wire_round_trip(facts: Facts) -> None:
    assert Facts.from_wire(json.loads(json.dumps(facts.to_wire()))) == facts


def test_another_protocol_is_refused_by_name() -> None:
    with pytest.raises(HandshakeRefused, match="protocol: 2 here, 7 there"):
        Facts.from_wire({"protocol": 7})


@given(json_values)
def test_no_value_breaks_the_reader(value: object) -> None:
    with pytest.raises(ConnectorError):
        Facts.from_wire(value)


@given(st.sampled_from([field.name for field in fields(Facts)]), json_values)
def test_no_field_value_breaks_the_reader(name: str, value: object) -> None:
    said = ""
    try:
        Facts.from_wire(FACTS.to_wire() | {name: value})
    except ConnectorError as error:
        said = str(error)
    assert len(said) < 300


def test_values_of_a_stranger_are_short_and_on_one_line() -> None:
    for mine, theirs in (("digest", "x" * 50_000), ("digest", "a\nFORGED " * 900), ("\ud800", "\u2028\x1b[31m")):
        sentence = disagreement(replace(FACTS, model_digest=mine), replace(FACTS, model_digest=theirs), 0, 0)
        assert sentence is not None
        assert len(sentence) < 300
        assert sentence.isprintable()


def test_long_values_show_where_they_differ() -> None:
    sizes = tuple(range(8, 520, 8))
    mine, theirs = replace(FACTS, graph_sizes=sizes), replace(FACTS, graph_sizes=(*sizes[:-1], 777))
    sentence = disagreement(mine, theirs, 0, 0) or ""
    assert "504, 512), FFN has ..." in sentence
    assert "504, 777); start both" in sentence


def test_the_sentence_about_two_models() -> None:
    ours, theirs = replace(FACTS, model_digest="0123456789abcdef"), replace(FACTS, model_digest="fedcba9876543210")
    assert (disagreement(ours, theirs, 0, 0) or "").startswith(
        "attention rank 0 and FFN rank 0 disagree on model_digest: "
        "attention has '0123456789abcdef', FFN has 'fedcba9876543210'; "
    )


def test_a_protocol_of_many_digits_is_cut() -> None:
    with pytest.raises(HandshakeRefused) as refused:
        Facts.from_wire({"protocol": 10**4000})
    assert len(str(refused.value)) < 200
