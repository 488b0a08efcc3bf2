"""The "afd" section is part of the key under which vLLM caches compiled graphs."""

from __future__ import annotations

import pytest
from vllm.config import VllmConfig


def key(section: dict[str, object] | None) -> str:
    return VllmConfig(additional_config={} if section is None else {"afd": section}).compute_hash()


@pytest.mark.parametrize(
    "other",
    [
        None,
        {"role": "ffn"},
        {"role": "attention", "compute_gate_on_attention": True},
        {"role": "attention", "shared_experts_on_attention": True},
        {"role": "attention", "dense_layers_on_attention": True},
        {"role": "attention", "rank": 1},
    ],
)
def test_another_section_has_another_key(other: dict[str, object] | None) -> None:
    assert key({"role": "attention"}) == key({"role": "attention"})
    assert key({"role": "attention"}) != key(other)
