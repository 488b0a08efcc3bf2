"""nvlink: device tensors of two processes of one host, by stores into each other's memory."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from afd_connectors.errors import spoken
from afd_connectors.facts import Facts
from afd_connectors.layout import Layout
from afd_connectors.ports import AttentionPort, Connector, FFNPort, Reach
from afd_connectors.settings import Settings
from afd_connectors.shape import Shape
from afd_connectors.transports.enqueued.device import CudaDevice, Device
from afd_connectors.transports.nvlink import fp8
from afd_connectors.transports.nvlink.moves import LAYERS, ROWS, Moves
from afd_connectors.transports.nvlink.sizes import PACKED_LEAST, UNIT, Slots, plan_of
from afd_connectors.transports.paired.connector import check_options, gather_seconds

if TYPE_CHECKING:
    from afd_connectors.transports.nvlink.carrier import NvlinkCarrier
    from afd_connectors.transports.nvlink.driver import Driver

log = logging.getLogger("afd.connectors")
_LOGIT_BYTES = 2  # the least that an element of router logits has


class Nvlink(Connector):
    """Rows are stored by kernels on the stream that is current at each call, so exchanges can be captured in graphs;
    graphs of the attention side outlast its peers. A wait that is given up ends its connection on the device at once.

    Options as of nccl-p2p, and wire_dtype: "model", or "fp8" for rows of bfloat16 or float16 that travel as e4m3 with a
    scale a row, which both roles must say; router logits and small messages stay as they are. Both roles must be on one
    host and in one network namespace, and each device must be able to map the other's memory. Ports belong to the CUDA
    device that is current on the thread that opens them.

    A lost FFN rank voids the step, which the user of the port repeats as a whole once the same port has joined its
    successor, see DeviceAttentionPort.
    """

    name: ClassVar[str] = "nvlink"
    features: ClassVar[frozenset[str]] = frozenset({"graph", "router", "variable_tokens", "reconnect"})
    devices: ClassVar[frozenset[str]] = frozenset({"cuda"})
    reach: ClassVar[Reach] = "host"

    def __init__(self, layout: Layout, shape: Shape, facts: Facts, settings: Settings) -> None:
        super().__init__(layout, shape, facts, settings)
        self.facts = replace(facts, wire_dtype=str(settings.extra.get(fp8.OPTION, fp8.MODEL)))
        self._slots = Slots.of(shape)
        if self.facts.wire_dtype != fp8.FP8:
            return
        if shape.dtype not in fp8.DTYPES:
            raise ValueError(
                f"connector {self.name!r} moves rows as fp8 where the model's are {' or '.join(fp8.DTYPES)}, found "
                f"{shape.dtype}; leave {fp8.OPTION} at {fp8.MODEL!r}."
            )
        self._slots = fp8.slots_of(shape)
        log.warning(
            "%s rank %d moves hidden states of %d bytes and more as fp8 (%s), so tokens may differ from those of the "
            "whole model", spoken(layout.role), layout.rank, PACKED_LEAST, fp8.OPTION,
        )  # fmt: skip

    @classmethod
    def misfit(cls, shape: Shape) -> str | None:
        """See Connector."""
        for name, value, most in (("tokens", shape.tokens, ROWS - 1), ("layers", shape.layers, LAYERS)):
            if value > most:
                return f"takes at most {most} {name}, found {value}; use 'nccl-p2p'"
        for what, size in (("rows", shape.row_bytes), ("rows of router logits", shape.router * _LOGIT_BYTES)):
            if size % UNIT:
                return f"moves {what} of a multiple of {UNIT} bytes, found {size}; use 'nccl-p2p'"
        return None

    @classmethod
    def check_options(cls, extra: Mapping[str, object]) -> None:
        """See Connector."""
        check_options(cls.name, extra, fp8.OPTION)
        found = extra.get(fp8.OPTION, fp8.MODEL)
        if found not in (fp8.MODEL, fp8.FP8):
            raise ValueError(f"{fp8.OPTION} must be {fp8.MODEL!r} or {fp8.FP8!r}, found {found!r}.")

    def bytes_needed(self) -> int:
        """See Connector."""
        peers = len(self.layout.peers)
        slots = peers * self._slots.total
        return slots + (self.shape.stages * peers * self.shape.exchange_bytes if self.layout.role == "ffn" else 0)

    def make_attention_port(self) -> AttentionPort:
        """See Connector."""
        from afd_connectors.transports.enqueued.attention import EnqueuedAttentionPort

        carrier = self.carrier(self.settings.timeout_s)
        return EnqueuedAttentionPort(self.layout, self.shape, self.facts, self.settings, carrier)

    def make_ffn_port(self) -> FFNPort:
        """See Connector; the port is a SteppedFFNPort.

        A living attention rank may take its time between two exchanges, and a dead one is noticed by its connection,
        so the device's own limit is the longer one.
        """
        from afd_connectors.transports.enqueued.ffn import EnqueuedFFNPort

        carrier, gather_s = self.carrier(self.settings.recovery_timeout_s), gather_seconds(self.settings.extra)
        return EnqueuedFFNPort(self.layout, self.shape, self.facts, self.settings, carrier, gather_s)

    def carrier(self, limit_s: float) -> NvlinkCarrier:
        """One per port; limit_s: of every wait on the device."""
        from afd_connectors.transports.nvlink.carrier import NvlinkCarrier

        driver, moves, device = self.means(limit_s)
        return NvlinkCarrier(driver, moves, device, self.shape, self._slots, limit_s)

    def means(self, limit_s: float) -> tuple[Driver, Moves | fp8.PackedMoves, Device]:
        """What moves the rows, and where they lie."""
        from afd_connectors.transports.nvlink.driver import Driver

        device, driver, stages = CudaDevice(), Driver(), self.shape.stages
        moves = Moves(driver, limit_s, partial(plan_of, stages=stages))
        if self.facts.wire_dtype != fp8.FP8:
            return driver, moves, device
        packed = fp8.PackedMoves(driver, moves, limit_s, self.shape.dtype, partial(fp8.plan_of, stages=stages))
        return driver, packed, device
