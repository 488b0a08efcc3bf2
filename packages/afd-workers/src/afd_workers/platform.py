"""What differs between devices, as one value chosen once; workers and policy hold no device conditions."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from afd_workers import features

if TYPE_CHECKING:
    from afd_connectors.layout import Role


@dataclass(frozen=True, slots=True)
class Platform:
    """How AFD runs on one kind of device.

    device: torch device type. workers: role -> dotted worker class for vLLM's ``worker_cls``.
    eager_only: exchanges cannot be captured in graphs here, so both roles run eagerly. runner_v2: the workers need
    vLLM's second model runner. needed: engine options that must have one value here, needed_with_overlap: with
    dual-batch overlap; see `refusals.check_on`. one_ffn_rank: a tensor-parallel attention group must reach one only.
    one_host: environment of both roles where they are on one host, unless the user has set it.
    """

    device: str
    workers: Mapping[Role, str]
    eager_only: bool
    runner_v2: bool = False
    needed: tuple[tuple[str, object, str], ...] = ()
    needed_with_overlap: tuple[tuple[str, object, str], ...] = ()
    one_ffn_rank: bool = False
    one_host: Mapping[str, str] = field(default_factory=dict)


#: Roles enqueue graphs and plain calls in one order, so that within a host, where nothing but the device moves rows,
#: NCCL need not keep them apart. That took 0.8 ms of a decode step of 27 layers.
NCCL = {"NCCL_GRAPH_MIXING_SUPPORT": "0"}
_NO_OVERLAP = "leave dual-batch overlap out, vLLM has it in its second model runner, which does not run on CPU"

PLATFORMS: Mapping[str, Platform] = {
    "cpu": Platform(
        device="cpu",
        workers={"attention": "afd_workers.cpu.AttentionWorker", "ffn": "afd_workers.cpu.FFNWorker"},
        eager_only=True,
        needed=(
            ("enable_expert_parallel", False, "leave it out, each FFN rank holds all experts"),
            ("enable_dbo", False, _NO_OVERLAP),
            ("ubatch_size", 0, _NO_OVERLAP),
        ),
    ),
    "cuda": Platform(
        device="cuda",
        workers={"attention": "afd_workers.cuda.AttentionWorker", "ffn": "afd_workers.cuda.FFNWorker"},
        eager_only=False,
        runner_v2=True,
        needed=(
            ("ubatch_size", 0, "use enable_dbo on both roles, a step is split in two or not at all"),
            *features.REFUSED_ON_CUDA,
        ),
        needed_with_overlap=(
            ("tensor_parallel_size", 1, "set it to 1, or leave dual-batch overlap out"),
            ("data_parallel_size", 1, "set it to 1, or leave dual-batch overlap out"),
        ),
        one_ffn_rank=True,
        one_host=NCCL,
    ),
}

#: Devices with a name and a plan but no runtime: where to find the sentence that says what is not there yet.
UNAVAILABLE: Mapping[str, str] = {
    "npu": "afd_npu:unavailable",
}


def choose(device: str) -> Platform:
    """The platform for a torch device type; ValueError says what is not there yet."""
    if device in PLATFORMS:
        return PLATFORMS[device]
    supported = ", ".join(sorted(PLATFORMS))
    if device in UNAVAILABLE:
        module, _, attribute = UNAVAILABLE[device].partition(":")
        try:
            reason = getattr(importlib.import_module(module), attribute)()
        except ModuleNotFoundError:
            reason = f"the package {module.replace('_', '-')} is not installed"
        raise ValueError(f"Expected a device that AFD runs on ({supported}), found {device}: {reason}")
    raise ValueError(f"Expected a device that AFD runs on ({supported}), found {device}: use one of these.")
