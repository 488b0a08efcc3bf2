"""Shares of a decode step, of steps whose kernels are made up."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.gpu import step_parts, step_shares
from tools.gpu.step_shares import Interval, Shares
from tools.gpu.trace_read import FEWEST, SKIP, Launch, Span

LAYERS, STEPS = 40, 2 * SKIP + 3
INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda pair: (min(pair), max(pair))))
Role = list[list[Span]]


def moments(some: Sequence[Interval]) -> set[int]:
    """The whole microseconds inside of intervals with whole ends."""
    return set(chain.from_iterable(range(int(start), int(end)) for start, end in some))


@given(INTERVALS, INTERVALS)
def test_what_is_exposed_is_in_one_and_not_in_the_other(some: list[Interval], others: list[Interval]) -> None:
    assert step_shares.length(some) == len(moments(some))
    assert step_shares.exposed(some, others) == len(moments(some) - moments(others))
    assert step_shares.union(step_shares.union(some)) == step_shares.union(some)


def serial(sends: str, takes: str) -> tuple[Role, Role]:
    """Per layer attention computes 10 us, a hop takes 3, the FFN 20, a hop 3; each waits while the other computes.

    A kernel that sends starts 2 us early, as it may, and one that takes as soon as the last one that sent is over.
    """
    attention, ffn = Role(), Role()
    for step in range(STEPS):
        ours, theirs, clock = [], [], step * (LAYERS * 36.0 + 100.0)
        ours_free = theirs_free = clock
        for _ in range(LAYERS):
            ours += [Span("attn", clock, clock + 10), Span(sends, clock + 8, clock + 12)]
            theirs += [Span(takes, theirs_free, clock + 13), Span("experts", clock + 13, clock + 33)]
            ours_free = clock + 12
            theirs += [Span(sends, clock + 31, clock + 35)]
            ours += [Span(takes, ours_free, clock + 36)]
            theirs_free, clock = clock + 35, clock + 36
        attention.append(ours)
        ffn.append(theirs)
    return attention, ffn


def together(sends: str, takes: str) -> tuple[Role, Role]:
    """The FFN computes without a break, 20 us for each of two stages, while the other's rows come, go and are computed.

    A stage leaves 20 us before the FFN turns to it, and its answer arrives while the FFN computes the other one.
    """
    attention, ffn = Role(), Role()
    for step in range(STEPS):
        begun = step * (LAYERS * 40.0 + 100.0)
        ours = [Span("attn", begun - 15, begun - 5)]
        theirs = list[Span]()
        for turn in range(2 * LAYERS):
            clock = begun + turn * 20.0
            theirs += [Span("experts", clock, clock + 20)]
            ours += [Span(sends, clock - 4, clock - 2)]
            theirs += [Span(takes, clock - 20, clock - 1)]
            theirs += [Span(sends, clock + 20, clock + 22)]
            ours += [Span(takes, clock + 10, clock + 23), Span("attn", clock + 23, clock + 33)]
        attention.append(ours)
        ffn.append(theirs)
    return attention, ffn


def launched(role: Role) -> list[Launch]:
    return [Launch(tuple(sorted(spans, key=lambda span: span.start)), None) for spans in role]


def shares(roles: tuple[Role, Role], *, overlapped: bool) -> Shares:
    ours, theirs = (launched(role) for role in roles)
    beside = tuple(list(chain.from_iterable(role)) for role in roles)
    found = step_shares.split(ours, theirs, (beside[0], beside[1]), overlapped=overlapped)
    assert len(found) == STEPS - 2 * SKIP - 1
    return step_shares.middle(found)


def test_without_overlap_every_transfer_is_exposed() -> None:
    found = shares(serial("afd_put", "afd_wait"), overlapped=False)
    assert found == Shares(
        step=LAYERS * 36 + 100, attention=LAYERS * 10, ffn=LAYERS * 20, transfer=LAYERS * 6, exposed=LAYERS * 6,
        attention_waits=LAYERS * 20 + 100, ffn_waits=LAYERS * 10 + 100,
    )  # fmt: skip
    assert found.hidden == 0


def test_nccl_kernels_are_paired_by_their_ends() -> None:
    found = shares(serial("ncclDevKernel_SendRecv", "ncclDevKernel_SendRecv"), overlapped=False)
    # They do not say which of both sends, so that its early start counts; beside what computes it is not exposed.
    assert (found.transfer, found.exposed) == (LAYERS * 10, LAYERS * 6)
    assert (found.attention, found.ffn) == (LAYERS * 10, LAYERS * 20)


@pytest.mark.parametrize(("sends", "takes"), [("afd_put", "afd_wait"), ("ncclKernel", "ncclKernel")])
def test_transfers_beside_computing_are_hidden(sends: str, takes: str) -> None:
    found = shares(together(sends, takes), overlapped=True)
    assert found.ffn == 2 * LAYERS * 20
    # All but the first request, before the FFN computes, and the last answer, after it.
    assert (found.transfer, found.exposed) == (2 * LAYERS * 6, 6)
    assert found.hidden == pytest.approx(1 - 6 / (12 * LAYERS))


def test_a_copy_ends_the_receipt_that_it_belongs_to() -> None:
    spans = [Span("afd_await", 0, 5), Span("afd_copy", 5, 7), Span("afd_await", 8, 9), Span("afd_copy", 9, 12)]
    assert [(span.start, span.end) for span in step_shares.receipts(spans)] == [(0, 7), (8, 12)]


def test_rows_that_nobody_waits_for_move_twice() -> None:
    """Into the peer's memory, and once it has time out of it."""
    assert step_shares.moving(Span("afd_put", 0, 2), Span("afd_wait", 10, 13)) == [(0, 2), (10, 13)]


def test_steps_whose_kernels_do_not_match_are_left_out() -> None:
    ours, theirs = serial("afd_put", "afd_wait")
    assert step_shares.hops(launched(ours)[0], launched([theirs[0][2:]])[0], overlapped=False) is None


def events(role: Role) -> list[dict[str, object]]:
    return [
        {"ph": "X", "cat": "kernel", "name": span.name, "ts": span.start, "dur": span.end - span.start,
         "args": {"correlation": number}}
        for number, spans in enumerate(role) for span in spans
    ]  # fmt: skip


def test_the_table_is_of_the_traces_in_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert LAYERS * 3 >= FEWEST
    for name, role in zip(("attention", "ffn"), serial("afd_put", "afd_wait"), strict=True):
        with gzip.open(tmp_path / f"graph.nvlink.{name}.128.json.gz", "wt") as stream:
            json.dump({"traceEvents": events(role)}, stream)
    step_parts.report(tmp_path)
    _, _, row = capsys.readouterr().out.splitlines()
    assert row == "| graph | nvlink | 128 | 1.54 | 0.40 | 0.80 | 0.24 | 0.24 | 0.90 | 0.50 | 0.00 |"
