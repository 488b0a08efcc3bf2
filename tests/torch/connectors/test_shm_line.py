"""What an attention rank takes from the memory that it shares with an FFN rank."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from afd_connectors.errors import FrameError
from afd_connectors.transports.paired.head import REQUEST, Head, reply_to
from afd_connectors.transports.shm_line import MemoryLine


def test_the_answer_of_another_stage_is_not_taken_for_this_ones() -> None:
    """Both stages are open, so the head alone would be a right one."""
    requests = [Head(REQUEST, 7, 2, stage, 3) for stage in (0, 1)]
    wrong = reply_to(requests[1].encode())
    lane = SimpleNamespace(arrived=lambda: True, head=lambda: memoryview(wrong), hidden_bytes=memoryview(bytearray(8)))
    line = object.__new__(MemoryLine)
    line._segment = SimpleNamespace(replies=[lane])  # type: ignore[assignment]
    line._awaited = {head.stage: head.encode() for head in requests}
    line._expected = {stage: reply_to(head) for stage, head in line._awaited.items()}
    with pytest.raises(
        FrameError, match=r"it sent Head\(.*stage=1.* while the answer to Head\(.*stage=0.* was awaited"
    ):
        line.answer(0, memoryview(bytearray(8)))
    assert set(line._awaited) == {0, 1}
