"""Keeps forward passes of asynchronous data parallelism from asking other ranks for their token counts."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from afd_compat.config import is_async
from afd_compat.declaration import Native, patch
from afd_compat.patches.versions import TESTED

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def async_pass(_attn_metadata: object = None, vllm_config: object = None, *_: object, **__: object) -> bool:
    """async_dp"""
    return is_async(getattr(vllm_config, "additional_config", None))


@patch(
    "vllm.forward_context:set_forward_context",
    vllm=TESTED,
    how="wrap",
    when="import",
    processes=("worker",),
    active=async_pass,
    effect="Async DP: no DPMetadata is made, so no forward pass waits for the token counts of other ranks.",
    until="vLLM makes DPMetadata only where a layer reads it",
    pin={  # what it asks of the configuration decides
        "0.30": "body:5959e74521134e9b",
        "0.31": "body:5959e74521134e9b",
        "0.32": "body:5959e74521134e9b",
        "0.33": "body:ff6650b53dafbe43",
    },
)
def without_dp_metadata(
    native: Native, attn_metadata: object, vllm_config: VllmConfig, *args: object, **kwargs: object
) -> object:
    alone = copy.copy(vllm_config)
    alone.parallel_config = copy.copy(vllm_config.parallel_config)
    alone.parallel_config.is_moe_model = False  # as of a dense model, whose ranks never coordinate their batches
    return native(attn_metadata, alone, *args, **kwargs)
