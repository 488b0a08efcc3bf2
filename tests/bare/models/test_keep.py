"""What a section asks attention to keep, and that both roles must ask for the same."""

from __future__ import annotations

import pytest

from afd_compat.config import Config
from afd_models.keep import NOTHING, Keep


@pytest.mark.parametrize(
    ("key", "keep"),
    [
        ("compute_gate_on_attention", Keep(gate=True)),
        ("shared_experts_on_attention", Keep(shared=True)),
        ("dense_layers_on_attention", Keep(dense=True)),
    ],
)
@pytest.mark.parametrize("role", ["attention", "ffn"])
def test_each_key_is_one_thing_to_keep(role: str, key: str, keep: Keep) -> None:
    assert Keep.of(Config.parse({"role": role, key: True}, {})) == keep
    assert Keep.of(Config.parse({"role": role}, {})) == NOTHING
