"""Rows as e4m3 on the wire, one float scale a row: where they lie in a slot, and which kernels move them.

A message of less than PACKED_LEAST bytes travels as it is, since it would be there later as e4m3.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

from afd_connectors.errors import ConnectorError
from afd_connectors.shape import Shape
from afd_connectors.transports.nvlink.kernels import checked, compiled
from afd_connectors.transports.nvlink.moves import Moves, Part, told
from afd_connectors.transports.nvlink.sizes import (
    KIB,
    MOST_BLOCKS,
    MOST_CHUNKS,
    MOST_PARTS,
    PACKED_LEAST,
    ROWS_AT,
    UNIT,
    UNITS_BESIDE,
    UNITS_BYTES,
    Plan,
    Slots,
)

if TYPE_CHECKING:
    from afd_connectors.transports.nvlink.driver import Driver

OPTION = "wire_dtype"
#: As the model has them, or as e4m3.
MODEL, FP8 = "model", "fp8"
DTYPES = ("bfloat16", "float16")
SOURCES = ("kernels.cu", "units.cu", "fp8.cu")  # one behind the other
KERNELS = ("afd_put8", "afd_wait8", "afd_await8", "afd_unpack8", "afd_put8_units", "afd_wait8_units")
LEAST_CAPABILITY = (8, 9)  # the first devices that convert to e4m3
SCALE_BYTES = 4
#: Behind each row that travels in units: one per warp of those that take it, each with its scale.
SCALE_UNITS = 4

_HEAD, _ROW = struct.Struct("<Q"), struct.Struct("<6Q4IQ2I")
_BYTES = _HEAD.size + MOST_PARTS * _ROW.size


def stride_of(row_bytes: int) -> int:
    """Bytes from row to row on the wire, of a model whose rows have so many bytes, two an element."""
    return -(-row_bytes // (2 * UNIT)) * UNIT


def slots_of(shape: Shape) -> Slots:
    """As Slots.of; the scales lie behind the rows. Router logits and small messages stay as they are."""
    plain = Slots.of(shape)
    scales = ROWS_AT + shape.tokens * stride_of(shape.row_bytes)
    as_they_are = ROWS_AT + max(min(shape.hidden_bytes, PACKED_LEAST), shape.router_bytes)
    most = max(scales + shape.tokens * SCALE_BYTES, as_they_are)
    return plain._replace(slot=-(-most // (4 * KIB)) * 4 * KIB, scales=scales)


@lru_cache(maxsize=4096)
def plan_of(rows: int, row_bytes: int, stages: int = 1) -> Plan:
    """The plan of a message of so many rows: chunks are whole rows and `chunk` counts them."""
    beside = stages > 1
    if rows * (stride_of(row_bytes) + UNIT * SCALE_UNITS) <= (UNITS_BESIDE if beside else UNITS_BYTES):
        blocks = min(rows, MOST_BLOCKS)
        return Plan(rows, 1, blocks, blocks, units=True)
    return chunked(rows, 128 if rows < 1024 else 256 if rows < 4096 else MOST_CHUNKS)._replace(apart=beside)


def chunked(rows: int, most: int) -> Plan:
    """At most `most` chunks."""
    chunk = -(-rows // most)
    chunks = -(-rows // chunk)
    return Plan(chunk, chunks, min(128, chunks), min(128, chunks))


class PackedMoves:
    """See Moves, which `plain` is and which moves what travels as it is. dtype: of the model's rows."""

    def __init__(
        self,
        driver: Driver,
        plain: Moves,
        limit_s: float,
        dtype: str,
        plan: Callable[[int, int], Plan] = plan_of,
        *,
        early: bool = True,
    ) -> None:
        driver.learn(load(driver.device, driver.capability))
        self._driver, self._plain, self._limit_ns, self._early = driver, plain, int(limit_s * 1e9), early
        self._plan, self._half = plan, int(dtype == "float16")

    def put(self, parts: Sequence[Part], stream: int) -> None:
        """See Moves."""
        planned, plain = self._parted(parts)
        self._launch("afd_put8_units", [(part, plan, plan.put) for part, plan in planned if plan.units], stream)
        self._launch("afd_put8", [(part, plan, plan.put) for part, plan in planned if not plan.units], stream)
        self._plain.put(plain, stream)

    def wait(self, parts: Sequence[Part], stream: int) -> None:
        """See Moves."""
        planned, plain = self._parted(parts)
        self._launch("afd_wait8_units", [(part, plan, plan.wait) for part, plan in planned if plan.units], stream)
        planned = [(part, plan) for part, plan in planned if not plan.units]
        self._launch("afd_wait8", [(part, plan, plan.wait) for part, plan in planned if not plan.apart], stream)
        apart = [(part, plan, plan.put) for part, plan in planned if plan.apart]
        self._launch("afd_await8", [(part, plan, 1) for part, plan, _ in apart], stream)
        self._launch("afd_unpack8", apart, stream)
        self._plain.wait(plain, stream)

    def _parted(self, parts: Sequence[Part]) -> tuple[list[tuple[Part, Plan]], list[Part]]:
        """Those whose rows travel as e4m3, and the others."""
        packed = [(part, told(part.head)[0]) for part in parts if part.scales]
        planned = [(part, self._plan(rows, part.size // rows)) for part, rows in packed]
        return planned, [part for part in parts if not part.scales]

    def _launch(self, kernel: str, parts: Sequence[tuple[Part, Plan, int]], stream: int) -> None:
        for first in range(0, len(parts), MOST_PARTS):
            some = parts[first : first + MOST_PARTS]
            given = bytearray(_BYTES)
            _HEAD.pack_into(given, 0, self._limit_ns)
            for place, (part, plan, _) in enumerate(some):
                rows = told(part.head)[0]
                units = part.size // rows // UNIT
                numbers = (rows, plan.chunk, plan.chunks, part.head, part.scales, units, self._half)
                _ROW.pack_into(given, _HEAD.size + place * _ROW.size, *part[:6], *numbers)
            blocks = min(max(blocks for _, _, blocks in some), MOST_BLOCKS // len(some))
            self._driver.launch(kernel, (blocks, len(some)), bytes(given), stream, early=self._early)


@cache
def load(device: int, capability: tuple[int, int]) -> Mapping[str, object]:  # noqa: ARG001  # a part of the key
    """The kernels by name for the device, which is current; ConnectorError for one that has no e4m3."""
    if capability < LEAST_CAPABILITY:
        have, least = (".".join(map(str, each)) for each in (capability, LEAST_CAPABILITY))
        raise ConnectorError(
            f"rows travel as fp8 between devices of compute capability {least} and above, found {have}; "
            f"leave {OPTION} at {MODEL!r}."
        )
    from cuda.bindings import driver

    source = "".join(files(__package__).joinpath(name).read_text() for name in SOURCES)
    image = compiled(source, "sm_{}{}".format(*capability))
    module = checked(driver.cuModuleLoadData(image), "cuModuleLoadData")
    return {name: checked(driver.cuModuleGetFunction(module, name.encode()), "cuModuleGetFunction") for name in KERNELS}
