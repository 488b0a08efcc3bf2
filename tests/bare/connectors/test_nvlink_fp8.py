"""How messages of packed rows are cut and launched: both sides and the kernels must mean the same."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_connectors.errors import ConnectorError
from afd_connectors.shape import Shape
from afd_connectors.transports.nvlink import fp8, sizes
from afd_connectors.transports.nvlink.fp8 import PackedMoves, plan_of, slots_of, stride_of
from afd_connectors.transports.nvlink.moves import ROWS, Part, head_of
from afd_connectors.transports.nvlink.sizes import MOST_CHUNKS, ROWS_AT, UNIT, UNITS_BESIDE, UNITS_BYTES, Slots

SOURCE = files("afd_connectors.transports.nvlink").joinpath("fp8.cu").read_text()


@given(st.integers(1, ROWS - 1), st.integers(1, 2000), st.integers(1, 2))
def test_chunks_are_whole_rows_and_cover_every_message(rows: int, units: int, stages: int) -> None:
    plan = plan_of(rows, units * UNIT, stages)
    assert (plan.chunks - 1) * plan.chunk < rows <= plan.chunks * plan.chunk
    most = rows if plan.units else plan.chunks
    assert 1 <= plan.put <= most
    assert 1 <= plan.wait <= most
    assert plan.chunks == 1 if plan.units else plan.chunks <= MOST_CHUNKS
    small = rows * (stride_of(units * UNIT) + UNIT * fp8.SCALE_UNITS) <= (UNITS_BESIDE, UNITS_BYTES)[stages == 1]
    assert plan.units == small
    assert plan.apart == (stages > 1 and not small)


@given(st.integers(1, 20_000), st.integers(1, 1000), st.integers(1, 2), st.integers(0, 64))
def test_slots_have_room_for_packed_rows_their_scales_and_logits(tokens: int, units: int, stages: int, by: int) -> None:
    shape = Shape(tokens, units * 8, "float16", 3, stages, by * 8)
    slots = slots_of(shape)
    assert stride_of(shape.row_bytes) % UNIT == 0
    assert stride_of(shape.row_bytes) >= shape.hidden
    assert slots.scales == ROWS_AT + tokens * stride_of(shape.row_bytes)
    assert slots.scales + 4 * tokens <= slots.slot
    assert ROWS_AT + shape.router_bytes <= slots.slot
    assert ROWS_AT + min(shape.hidden_bytes, sizes.PACKED_LEAST) <= slots.slot
    assert slots.total == stages * (2 if by else 1) * slots.slot


def test_packed_rows_need_about_half_the_memory() -> None:
    shape = Shape(8192, 7168, "bfloat16", 3)
    assert slots_of(shape).slot - ROWS_AT < 0.501 * (Slots.of(shape).slot - ROWS_AT)


def test_the_kernels_are_told_the_same() -> None:
    assert f"Row row[{sizes.MOST_PARTS}]" in SOURCE
    assert all(f"{kernel}(const __grid_constant__ Packed a)" in SOURCE for kernel in fp8.KERNELS)
    team = re.search(r"#define TEAM (\d+)", SOURCE)
    assert team is not None
    assert sizes.THREADS % int(team[1]) == 0
    assert f"#define WARPS {int(team[1]) // 32} " in SOURCE
    assert int(team[1]) // 32 == fp8.SCALE_UNITS
    assert fp8._ROW.size == 6 * 8 + 4 * 4 + 8 + 2 * 4


def test_devices_without_e4m3_are_told_so() -> None:
    with pytest.raises(ConnectorError, match=r"compute capability 8\.9 and above, found 8\.0; leave wire_dtype at 'mo"):
        fp8.load(0, (8, 0))


class Recorded:
    """See Driver: what was enqueued."""

    device, capability = 0, (9, 0)

    def __init__(self) -> None:
        self.did: list[tuple[object, ...]] = []
        self.given: list[bytes] = []

    def learn(self, functions: object) -> None:
        """Of no use here."""

    def launch(self, kernel: str, grid: tuple[int, int], arguments: bytes, stream: int, *, early: bool) -> None:
        self.did.append((kernel, *grid))
        self.given.append(arguments)


class Plain:
    """See Moves: what travels as it is."""

    def __init__(self) -> None:
        self.did: list[tuple[str, int]] = []

    def put(self, parts: Sequence[Part], stream: int) -> None:
        self.did.append(("put", len(parts)))

    def wait(self, parts: Sequence[Part], stream: int) -> None:
        self.did.append(("wait", len(parts)))


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8, "load", lambda _device, _capability: {})


ROW = 4096  # bytes


def part(rows: int, scales: int = 512) -> Part:
    return Part(1 << 20, 2 << 20, 16, 32, 48, 64, rows * ROW, head_of(rows, 0, 0), scales)


def moves(driver: Recorded, plain: Plain, stages: int = 1, dtype: str = "bfloat16") -> PackedMoves:
    return PackedMoves(driver, plain, 1.0, dtype, lambda rows, size: plan_of(rows, size, stages))  # type: ignore[arg-type]


@pytest.mark.usefixtures("kernels")
def test_logits_travel_as_they_are_beside_packed_rows() -> None:
    seen, plain = Recorded(), Plain()
    moves(seen, plain).put([part(3), part(3, 0), part(3)], 0)
    assert seen.did == [("afd_put8_units", 3, 2)]
    assert plain.did == [("put", 1)]


@pytest.mark.usefixtures("kernels")
def test_many_peers_are_few_launches_and_all_blocks_run_at_once() -> None:
    seen = Recorded()
    moves(seen, Plain()).wait([part(8192)] * 11, 0)
    assert seen.did == [("afd_wait8", sizes.MOST_BLOCKS // 8, 8), ("afd_wait8", sizes.MOST_BLOCKS // 3, 3)]


@pytest.mark.usefixtures("kernels")
def test_beside_another_stage_one_block_waits_and_others_unpack_later() -> None:
    seen = Recorded()
    moves(seen, Plain(), stages=2).wait([part(128), part(2)], 0)
    assert seen.did == [("afd_wait8_units", 2, 1), ("afd_await8", 1, 1), ("afd_unpack8", 128, 1)]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("dtype", "half"), [("bfloat16", 0), ("float16", 1)])
def test_the_kernels_get_rows_and_units(dtype: str, half: int) -> None:
    seen = Recorded()
    moves(seen, Plain(), dtype=dtype).put([part(3)], 0)
    limit, *first = struct.unpack_from("<Q6Q4IQ2I", seen.given[0])
    assert limit == 1e9
    assert first == [1 << 20, 2 << 20, 16, 32, 48, 64, 3, 3, 1, head_of(3, 0, 0), 512, ROW // UNIT, half]
