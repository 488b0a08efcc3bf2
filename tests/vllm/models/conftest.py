"""vLLM's process groups, for tests that build models in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch


class _Forgetful(dict[int, list[str]]):
    """vLLM keeps what a model lacks under its id, which a later model of the same process may get."""

    def __setitem__(self, key: int, value: list[str]) -> None:
        """Keeps nothing."""


@pytest.fixture(scope="session")
def distributed() -> Iterator[None]:
    """vLLM's process groups for one rank, which its layers ask for while they are built."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed.parallel_state import (
        cleanup_dist_env_and_memory,
        ensure_model_parallel_initialized,
        init_distributed_environment,
    )
    from vllm.model_executor.models import utils
    from vllm.utils.network_utils import get_open_port

    utils._model_to_pp_missing_layer_names = _Forgetful()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    torch.set_num_threads(1)
    # vLLM's loader frees device memory since 0.32; on a CPU it is the worker that makes this a no-op.
    empty_cache = torch.accelerator.empty_cache
    torch.accelerator.empty_cache = lambda: None
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"tcp://127.0.0.1:{get_open_port()}", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
    yield
    torch.accelerator.empty_cache = empty_cache
    cleanup_dist_env_and_memory()
