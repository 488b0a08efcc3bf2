"""How a message of a size travels, and how much memory a pair of ranks needs for it: the same on both sides."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from afd_connectors.shape import Shape

KIB, MIB = 1 << 10, 1 << 20
#: Rows are moved in units of this many bytes.
UNIT = 16
# These two are told to the kernels' source as well.
MOST_PARTS, THREADS = 8, 512
MOST_CHUNKS = 1024
#: Of all parts of a call together: as many as a device runs at once, so that no block waits for one that waits.
MOST_BLOCKS = 256

#: Up to here each unit says by itself that it is there, see units.cu, in a place of their own. Above, chunks are as
#: fast, and the receiver may use rows where they arrive.
UNITS_BYTES = 4 * MIB
#: The same beside another stage, where blocks that wait are to be few.
UNITS_BESIDE = 64 * KIB
#: Bytes from which on rows are sooner there as e4m3: 64 rows of 7168 took 5.0 us beside 4.7, 128 rows 6.5 beside 7.3.
PACKED_LEAST = 1 * MIB + 1
CHUNK_LEAST = 4 * KIB
#: From here on chunks are smaller parts of the whole, since the link does not hide the receiver's copies of the last
#: ones. Below, more chunks cost more than that: the sender waits for the peer's memory once for each.
MEDIUM, LARGE = 12 * MIB, 64 * MIB
FLAGS_AT, UNITS_AT = 0, 8 * MOST_CHUNKS
ROWS_AT = UNITS_AT + UNITS_BYTES
COUNTS = MOST_CHUNKS  # u32 per slot and direction
OVER_BYTES = 16  # after all counts, a word of them is used
STATUS_BYTES = 32


class Plan(NamedTuple):
    """chunk: bytes of one, chunks: how many; put, wait: blocks of the kernels; apart: one block waits and others copy
    after it; units: whether it is one chunk in which each unit says that it is there.
    """

    chunk: int
    chunks: int
    put: int
    wait: int
    apart: bool = False
    units: bool = False


@lru_cache(maxsize=4096)
def plan_of(size: int, stages: int = 1) -> Plan:
    """The plan of a message of `size` bytes, a positive multiple of UNIT, where steps have that many stages.

    Beside another stage few blocks wait: those that do keep others from computing.
    """
    beside = stages > 1
    if size <= (UNITS_BESIDE if beside else UNITS_BYTES):
        return in_units(size)
    if size < MEDIUM:
        return chunked(size, 64, 64, 64)._replace(apart=beside)
    return chunked(size, 256 if size < LARGE else MOST_CHUNKS, 128, 32 if beside else 128)


def in_units(size: int) -> Plan:
    """A unit for each thread, or for each the same number where that would be too many blocks at once."""
    groups = -(-size // (UNIT * THREADS))
    blocks = -(-groups // -(-groups // MOST_BLOCKS))
    return Plan(size, 1, blocks, blocks, units=True)


def chunked(size: int, most: int, put: int, wait: int) -> Plan:
    """At most `most` chunks of whole units and at least CHUNK_LEAST bytes."""
    chunk = max(CHUNK_LEAST, -(-size // (most * UNIT)) * UNIT)
    chunks = -(-size // chunk)
    return Plan(chunk, chunks, min(put, chunks), min(wait, chunks))


class Slots(NamedTuple):
    """The memory into which one side receives: per stage one slot for hidden states and, where router logits travel,
    one for those; in each words of chunks, a place for units and rows as they are. scales: where in a slot those of
    rows are that travel as e4m3, 0 where they travel as they are.
    """

    slot: int
    number: int
    stages: int
    scales: int = 0

    @property
    def total(self) -> int:
        """Bytes of all slots."""
        return self.slot * self.number

    def place(self, stage: int, logits: bool) -> int:
        """The number of a slot."""
        return stage + self.stages if logits else stage

    @classmethod
    def of(cls, shape: Shape) -> Slots:
        """For the largest exchanges of a shape."""
        most = max(shape.hidden_bytes, shape.router_bytes)
        number = shape.stages * (2 if shape.router else 1)
        return cls(-(-(ROWS_AT + most) // (4 * KIB)) * 4 * KIB, number, shape.stages)
