"""What a role fixes of vLLM's options and environment."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from afd_workers import policy
from afd_workers.platform import NCCL

KNOB = "NCCL_GRAPH_MIXING_SUPPORT"


def test_attention_takes_the_options_of_expert_parallel_ffn_ranks() -> None:
    options = SimpleNamespace(enable_expert_parallel=True, tensor_parallel_size=2)
    policy._settle(options, "attention")  # type: ignore[arg-type]
    assert vars(options) == {"enable_expert_parallel": False, "tensor_parallel_size": 2}


def test_the_ffn_role_takes_the_options_of_attention() -> None:
    options = SimpleNamespace(enable_expert_parallel=True, enable_prefix_caching=True, enable_lora=True)
    policy._settle(options, "ffn")  # type: ignore[arg-type]
    assert options.enable_expert_parallel
    assert (options.enforce_eager, options.disable_custom_all_reduce) == (True, True)
    assert not (options.enable_prefix_caching)
    assert not (options.enable_lora)


@pytest.mark.parametrize(("given", "found"), [(None, "0"), ("1", "1")])
def test_roles_of_one_host_tell_nccl_that_they_keep_an_order_unless_the_user_says_otherwise(
    given: str | None, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KNOB, given or "")
    if given is None:
        monkeypatch.delenv(KNOB)
    policy._surround(NCCL)
    assert os.environ[KNOB] == found
