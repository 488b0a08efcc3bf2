"""How nvlink's messages are cut: both sides and the kernels must mean the same."""

from __future__ import annotations

import re
from importlib.resources import files

from hypothesis import given
from hypothesis import strategies as st

from afd_connectors.shape import Shape
from afd_connectors.transports.nvlink import driver, kernels, link, moves, sizes
from afd_connectors.transports.nvlink.moves import LAYERS, ROWS, STAGES, Moves, Part, head_of, told
from afd_connectors.transports.nvlink.sizes import COUNTS, MOST_CHUNKS, UNIT, Slots, plan_of

SIZES = st.integers(1, 1 << 24).map(lambda units: units * UNIT)


@given(SIZES, st.integers(1, 2))
def test_chunks_cover_every_message_and_have_words_of_their_own(size: int, stages: int) -> None:
    plan = plan_of(size, stages)
    assert (plan.chunks - 1) * plan.chunk < size <= plan.chunks * plan.chunk
    assert plan.chunk % UNIT == 0
    assert 1 <= plan.chunks <= MOST_CHUNKS == COUNTS
    assert stages == 1 or plan.apart or plan.wait <= 32
    if plan.units:
        assert plan.chunks == 1
        assert size <= sizes.UNITS_BYTES
        assert 1 <= plan.put == plan.wait <= sizes.MOST_BLOCKS
        assert (plan.put - 1) * sizes.THREADS * UNIT < size
    else:
        assert 1 <= plan.put <= plan.chunks
        assert 1 <= plan.wait <= plan.chunks


@given(st.integers(0, ROWS - 1), st.integers(0, LAYERS - 1), st.integers(0, STAGES - 1))
def test_a_head_tells_what_it_was_made_of(rows: int, layer: int, stage: int) -> None:
    head = head_of(rows, layer, stage)
    assert head < 1 << 32
    assert told(head) == (rows, layer, stage)


@given(st.integers(1, 20_000), st.integers(1, 1000), st.integers(1, 2))
def test_slots_have_room_for_words_and_rows(tokens: int, units: int, stages: int) -> None:
    shape = Shape(tokens, units * UNIT // 2, "bfloat16", 3, stages)
    slots = Slots.of(shape)
    assert sizes.FLAGS_AT + 8 * MOST_CHUNKS <= sizes.UNITS_AT
    assert sizes.UNITS_AT + sizes.UNITS_BYTES <= sizes.ROWS_AT
    assert sizes.UNITS_AT % UNIT == sizes.ROWS_AT % UNIT == slots.slot % UNIT == 0
    assert sizes.ROWS_AT + shape.hidden_bytes <= slots.slot
    assert slots.total == stages * slots.slot


def test_the_kernels_are_told_the_same() -> None:
    source = "".join(files("afd_connectors.transports.nvlink").joinpath(name).read_text() for name in kernels.SOURCES)
    defined = dict(re.findall(r"#define (THREADS|UNITS_AT) (\d+)", source))
    assert defined == {"THREADS": str(sizes.THREADS), "UNITS_AT": str(sizes.UNITS_AT)}
    assert sizes.THREADS == driver.THREADS
    assert f"Part part[{sizes.MOST_PARTS}]" in source
    assert all(f"{kernel}(const __grid_constant__ Args a)" in source for kernel in kernels.KERNELS)
    kinds = re.findall(r"#define (MISMATCH|ENDED) (\d)u", source)
    assert kinds == [("MISMATCH", str(link.MISMATCH)), ("ENDED", str(link.ENDED))]


class Recorded:
    """See Driver: what was enqueued."""

    def __init__(self) -> None:
        self.did: list[tuple[object, ...]] = []

    def launch(self, kernel: str, grid: tuple[int, int], arguments: bytes, stream: int, *, early: bool) -> None:
        assert len(arguments) == moves._BYTES
        self.did.append((kernel, *grid))


def part(size: int) -> Part:
    return Part(1 << 20, 2 << 20, 16, 32, 48, 64, size, head_of(1, 0, 0))


def test_small_messages_of_many_peers_are_few_launches() -> None:
    seen = Recorded()
    Moves(seen, 1.0).put([part(1024)] * 11, 0)  # type: ignore[arg-type]
    assert seen.did == [("afd_put_units", 1, 8), ("afd_put_units", 1, 3)]


def test_all_blocks_of_a_call_run_at_once() -> None:
    seen = Recorded()
    Moves(seen, 1.0).put([part(64 << 20)] * 8, 0)  # type: ignore[arg-type]
    assert seen.did == [("afd_put", sizes.MOST_BLOCKS // 8, 8)]


def test_beside_another_stage_one_block_waits_and_others_copy_later() -> None:
    seen, size = Recorded(), 1 << 20
    Moves(seen, 1.0, lambda size: plan_of(size, 2)).wait([part(size)], 0)  # type: ignore[arg-type]
    size = sizes.UNITS_BYTES + UNIT
    Moves(seen, 1.0).wait([part(size)], 0)  # type: ignore[arg-type]
    landed = part(size)
    Moves(seen, 1.0).wait([landed._replace(to=landed.start)], 0)  # type: ignore[arg-type]
    assert [call[:2] for call in seen.did] == [("afd_await", 1), ("afd_copy", 64), ("afd_wait", 64), ("afd_await", 1)]


def test_small_messages_are_taken_out_of_the_units_also_where_rows_may_stay() -> None:
    seen = Recorded()
    small, large = part(1024), part(sizes.UNITS_BYTES + UNIT)
    Moves(seen, 1.0).wait([some._replace(to=some.start) for some in (small, large)], 0)  # type: ignore[arg-type]
    assert seen.did == [("afd_wait_units", 1, 1), ("afd_await", 1, 1)]
