"""How a message of a size travels, and how much memory a pair of ranks needs for it: the same on both sides."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from afd_connectors.shape import Shape

KIB, MIB = 1 << 10, 1 << 20
#: Rows are moved in units of this many bytes.
UNIT = 16
# These five are told to the kernels' source as well.
MOST_PARTS, THREADS, MOST_CHUNKS, BLOCK_LINES = 8, 512, 128, 1024
LINE = 8  # bytes of rows in one line of 16

#: Up to here a message would travel in lines, which double it and need no word after the rows: never, since between two
#: devices 14 KiB took 42 us that way and 224 KiB 519, where 512 KiB in chunks take 4.7.
LINES_BYTES = 0
LINES_ROOM = 1 * MIB
#: From here on a copy engine moves the rows: with 2 MiB a kernel is far ahead, with 8 MiB it took twice NCCL's time.
ENGINE_BYTES = 4 * MIB
CHUNK_LEAST = 16 * KIB
#: Parts that a copy engine moves one after another, each told when it is there: the last is small, because the
#: receiver's own copy of it is all that the link does not hide.
CUTS = (0.5, 0.85, 1.0)
FLAGS_AT, LINES_AT = 0, 4 * KIB
COUNTS = MOST_CHUNKS + LINES_ROOM // LINE // BLOCK_LINES  # u32 per slot and direction
STATUS_BYTES = 32


class Plan(NamedTuple):
    """chunk: bytes of one, chunks: how many, 0 where the message travels in lines; put, wait: blocks of the kernels.

    cuts: the chunk before which each of the copy engine's parts ends, none where a kernel moves the rows; apart: one
    block waits and others copy after it.
    """

    chunk: int
    chunks: int
    put: int
    wait: int
    cuts: tuple[int, ...] = ()
    apart: bool = False

    @property
    def lines(self) -> bool:
        """Whether the message travels in lines."""
        return self.chunks == 0


@lru_cache(maxsize=4096)
def plan_of(size: int, stages: int = 1) -> Plan:
    """The plan of a message of `size` bytes, a positive multiple of UNIT, where steps have that many stages."""
    if size <= LINES_BYTES:
        return in_lines(size)
    return _in_chunks(size)._replace(apart=stages > 1)


def _in_chunks(size: int) -> Plan:
    if size < ENGINE_BYTES:
        return chunked(size, 64, 64, 64)
    plan = chunked(size, MOST_CHUNKS, MOST_CHUNKS, 32)
    return plan._replace(cuts=tuple(max(1, round(plan.chunks * cut)) for cut in CUTS))


def in_lines(size: int) -> Plan:
    """As many blocks as the lines need."""
    blocks = -(-(size // LINE) // BLOCK_LINES)
    return Plan(0, 0, blocks, blocks)


def chunked(size: int, most: int, put: int, wait: int) -> Plan:
    """At most `most` chunks of whole units and at least CHUNK_LEAST bytes."""
    chunk = max(CHUNK_LEAST, -(-size // (most * UNIT)) * UNIT)
    chunks = -(-size // chunk)
    return Plan(chunk, chunks, min(put, chunks), min(wait, chunks))


class Slots(NamedTuple):
    """The memory into which one side receives: per stage, words of chunks, lines, and rows as they are."""

    rows_at: int
    slot: int
    stages: int

    @property
    def total(self) -> int:
        """Bytes of all stages."""
        return self.slot * self.stages

    @classmethod
    def of(cls, shape: Shape) -> Slots:
        """For the largest exchanges of a shape."""
        lines = min(shape.hidden_bytes, LINES_ROOM) // LINE + 1
        rows_at = _up(LINES_AT + 16 * lines, 4 * KIB)
        return cls(rows_at, _up(rows_at + shape.hidden_bytes, 4 * KIB), shape.stages)


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
