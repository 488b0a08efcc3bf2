"""Split steps in every topology over the CPU transports: vLLM's microbatch threads on attention, real ports between.

vLLM's CPU workers have no overlap, so no server on a CPU can be asked for it; this is as near as a CPU comes.
"""

from __future__ import annotations

import pytest
import torch

from afd_connectors.registry import resolve
from afd_connectors.shape import Shape
from afd_connectors.testing.group import Group, answer_of
from tests.vllm.workers.test_dbo import LAYERS, WIDTH, Split


def expected(hidden: torch.Tensor, stage: int) -> torch.Tensor:
    for layer in range(LAYERS):
        hidden = answer_of(hidden, layer, stage) + 1
    return hidden


@pytest.mark.parametrize("connector", ["shm", "tcp"])
@pytest.mark.parametrize(("attention", "ffn"), [(2, 2), (3, 1), (1, 3), (2, 3)])
def test_both_stages_rows_come_back_to_their_places(
    connector: str, attention: int, ffn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = Shape(16, WIDTH, "float32", LAYERS, 2)
    with Group(resolve(connector, "cpu"), shape, attention=attention, ffn=ffn) as group:
        group.start_ffn()
        splits = [Split(monkeypatch, group.open_attention(rank)) for rank in range(attention)]
        for rows, first in ((5, 2), (16, 8), (2, 1), (7, 6)):
            for rank, split in enumerate(splits):
                hidden = torch.arange(float(rows * WIDTH)).reshape(rows, WIDTH) % 7 + rank
                halves = (expected(hidden[:first], 0), expected(hidden[first:], 1))
                assert torch.equal(split.run(hidden, first), torch.cat(halves))
                assert torch.equal(split.model(hidden), expected(hidden, 0))
        served = {(rank, work.stage) for rank, work, _ in group.works}
        assert served == {(rank, stage) for rank in range(ffn) for stage in (0, 1)}
        assert not group.died
