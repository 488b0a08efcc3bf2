"""Shadows: what a step reads comes back bit for bit, whatever its dtype and size; what is right in place stays."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from afd_workers.cuda_shadow import Shadows

DTYPES = st.sampled_from([torch.int32, torch.int64, torch.bool, torch.uint8, torch.bfloat16])
TENSORS = st.lists(st.tuples(DTYPES, st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=6)


@given(TENSORS, st.integers(0, 99))
def test_what_was_kept_comes_back(shapes: list[tuple[torch.dtype, int, int]], seed: int) -> None:
    torch.manual_seed(seed)
    live = [torch.randint(0, 2, (rows, width)).to(dtype) for dtype, rows, width in shapes]
    latest = torch.arange(3)
    before = [each.clone() for each in live]
    shadow = Shadows(live, [latest]).take()
    for each in live:
        each.fill_(1)
    latest.fill_(7)
    shadow.restore(first=False)
    assert all(torch.equal(each, kept) for each, kept in zip(live, before, strict=True))
    assert latest.tolist() == [7, 7, 7]
    shadow.restore(first=True)
    assert latest.tolist() == [0, 1, 2]


def test_no_more_shadows_than_steps_under_way() -> None:
    value = torch.zeros(4, dtype=torch.int32)
    shadows = Shadows([value], [])
    first, second = shadows.take(), shadows.take()
    shadows.give(first)
    value.fill_(5)
    again = shadows.take()
    assert again is first
    value.zero_()
    again.restore(first=True)
    assert value.tolist() == [5, 5, 5, 5]
    second.restore(first=True)
    assert value.tolist() == [0, 0, 0, 0]
