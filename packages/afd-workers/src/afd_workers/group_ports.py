"""Ports on which vLLM's data-parallel ranks meet, out of the reach of connections that are made in the meantime."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from afd_workers.launch.free import free_ports

if TYPE_CHECKING:
    from vllm.config import ParallelConfig


def settle(parallel: ParallelConfig) -> None:
    """Puts other ports in the place of those that vLLM drew, if it drew any and the user gave no VLLM_PORT.

    vLLM draws them from the ports that the system hands out, while it parses its options, and listens on two of them
    once its engines have started, up to a minute later. Until then any socket of the host that listens without naming
    a port may get one: groups and communicators of other servers have a dozen each. Who listens then tries the next
    one, of which the other ranks hear nothing, or ends. Ports below those that the system hands out stay free.
    """
    drawn = parallel._data_parallel_master_port_list
    if not drawn or "VLLM_PORT" in os.environ:
        return
    parallel.data_parallel_master_port, *rest = free_ports(len(drawn) + 1)
    parallel._data_parallel_master_port_list = rest
