"""What a role fixes of vLLM's options and environment."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from afd_workers import group_ports, policy
from afd_workers.launch import free
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


def drawn(*ports: int) -> SimpleNamespace:
    """What vLLM drew for its data-parallel ranks: one, and a list of others."""
    return SimpleNamespace(data_parallel_master_port=40000, _data_parallel_master_port_list=list(ports))


def test_data_parallel_ranks_meet_on_ports_that_no_connection_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_PORT", raising=False)
    parallel = drawn(40001, 40002, 40003, 40004)
    group_ports.settle(parallel)  # type: ignore[arg-type]
    found = [parallel.data_parallel_master_port, *parallel._data_parallel_master_port_list]
    assert len(set(found)) == 5
    assert all(1024 <= port < free._given_from() for port in found)


@pytest.mark.parametrize(("port", "ports"), [("20000", (20001, 20002)), (None, ())])
def test_ports_that_the_user_chose_and_those_of_one_rank_stay(
    port: str | None, ports: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_PORT", raising=False)
    if port is not None:
        monkeypatch.setenv("VLLM_PORT", port)
    parallel = drawn(*ports)
    group_ports.settle(parallel)  # type: ignore[arg-type]
    assert vars(parallel) == vars(drawn(*ports))
