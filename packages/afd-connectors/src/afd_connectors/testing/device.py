"""Where a suite's tensors lie: calls that only enqueue need a stream of their own, and a moment that ends them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from afd_connectors.ports import AttentionPort
from afd_connectors.step import Step
from afd_connectors.stepped import DeviceAttentionPort

CPU = "cpu"


def own_stream(device: str) -> AbstractContextManager[object]:
    """A new stream of a device type for the calling thread: ranks that share one would wait for themselves."""
    if device == CPU:
        return nullcontext()
    module = torch.get_device_module(device)
    found: AbstractContextManager[object] = module.stream(module.Stream())
    return found


def settle(device: str) -> None:
    """Waits until the device has done what the calling thread's stream was given."""
    if device != CPU:
        torch.get_device_module(device).current_stream().synchronize()


def receive(port: AttentionPort, step: Step, layer: int, out: Tensor, stage: int = 0) -> None:
    """`recv`, over once `out` is filled; of a port whose calls only enqueue, PeerLost where the step is void."""
    port.recv(step, layer, out, stage=stage)
    if isinstance(port, DeviceAttentionPort):
        check = port.witness()
        with port.awaiting():
            settle(out.device.type)
        check()
