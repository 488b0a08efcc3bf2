"""What an accelerator reaches, for times that nobody measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Device:
    """Rates that are reached, not those of the data sheet.

    memory: bytes. workspace: bytes that an engine takes beside weights and KV cache. bytes_s: weights read per
    second. kv_bytes_s, latent_bytes_s: the same of KV caches with heads, and with latents (MLA). flops_s: of large
    bfloat16 products. launch_s: what a layer of one role takes beyond reading and computing. hop_s: of one short
    message one way. link_bytes_s: of long ones.
    """

    memory: float
    workspace: float
    bytes_s: float
    kv_bytes_s: float
    latent_bytes_s: float
    flops_s: float
    launch_s: float
    hop_s: float
    link_bytes_s: float

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"Expected {name} of a device above 0, found {getattr(self, name)!r}: correct it.")


#: Fitted to docs/benchmarks/gpu.md: weights and launches to the FFN role alone at 1 to 128 rows, latents to steps
#: with 50 to 1024 tokens of context (2 to 3 TB/s), products to native servers' prompts, hops to NCCL in a graph.
H200: Final = Device(
    memory=140.4 * _GIB,
    workspace=2.25 * _GIB,
    bytes_s=3.8e12,
    kv_bytes_s=3.8e12,
    latent_bytes_s=2.5e12,
    flops_s=3.8e14,
    launch_s=20e-6,
    hop_s=8e-6,
    link_bytes_s=3.4e11,
)
DEVICES: Final[Mapping[str, Device]] = MappingProxyType({"h200": H200})
