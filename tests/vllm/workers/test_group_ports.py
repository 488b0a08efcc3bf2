"""The ports of vLLM's own configuration of data-parallel ranks are those that AFD settled."""

from __future__ import annotations

import pytest
from vllm.config import ParallelConfig

from afd_workers import group_ports
from afd_workers.launch import free


def test_every_group_of_data_parallel_ranks_meets_on_a_settled_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_PORT", raising=False)
    parallel = ParallelConfig(data_parallel_size=2, data_parallel_size_local=2)
    count = 1 + len(parallel._data_parallel_master_port_list)
    group_ports.settle(parallel)
    found = [parallel.get_next_dp_init_port() for _ in range(count)]
    assert len(set(found)) == count == 5
    assert all(port < free._given_from() for port in found)


def test_one_rank_keeps_what_it_has() -> None:
    parallel = ParallelConfig()
    before = parallel.data_parallel_master_port
    group_ports.settle(parallel)
    assert (parallel.data_parallel_master_port, parallel._data_parallel_master_port_list) == (before, [])
