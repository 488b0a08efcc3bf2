"""What both roles enqueue for a split step can never wait in a circle, even if no transfer is buffered."""

from __future__ import annotations

import pytest
import torch

from afd_connectors.ports import Work
from afd_connectors.step import Mode, Step
from afd_connectors.stepped import Gathered, Member
from afd_workers import dbo, dbo_ffn
from afd_workers.dbo import SideStream, Ubatches
from afd_workers.dbo_ffn import Overlapped
from tests.support import lanes
from tests.vllm.workers.test_dbo import LAYERS, WIDTH, Port, Split

OUT, BACK = "requests", "answers"


class AttentionEnd(Port):
    """Notes transfers on the thread's current stream."""

    def __init__(self, side: lanes.Side) -> None:
        super().__init__()
        self.side = side

    def send(self, step: Step, layer: int, hidden: torch.Tensor, router: None = None, *, stage: int = 0) -> None:
        super().send(step, layer, hidden, stage=stage)
        self.side.enqueue("send", (OUT, layer, stage))

    def recv(self, step: Step, layer: int, out: torch.Tensor, *, stage: int = 0) -> None:
        super().recv(step, layer, out, stage=stage)
        self.side.enqueue("recv", (BACK, layer, stage))
        self.side.enqueue("compute", f"attention {layer + 1} {stage}")


class FFNEnd:
    """See SteppedFFNPort; as much as a step needs."""

    layers = LAYERS

    def __init__(self, side: lanes.Side) -> None:
        self.side = side

    def take(self, gathered: Gathered, layer: int, stage: int) -> Work | None:
        rows = gathered.members[0].step.tokens[stage]
        if not rows:
            return None
        self.side.enqueue("recv", (OUT, layer, stage))
        return Work(gathered.members[0].step, layer, stage, torch.zeros(rows, WIDTH), None, None)

    def send(self, work: Work, out: torch.Tensor) -> None:
        self.side.enqueue("send", (BACK, work.layer, work.stage))


def enqueue_attention(monkeypatch: pytest.MonkeyPatch, side: lanes.Side) -> tuple[int, ...]:
    """A split step of the attention role; the rows per stage that were announced."""
    port = AttentionEnd(side)
    split = Split(monkeypatch, port)
    monkeypatch.setattr(dbo, "torch", side)
    split.exchange.split(Ubatches(SideStream(torch.device("cpu"))))
    split.run(torch.ones(5, WIDTH), 2)
    return port.steps[0].tokens


def enqueue_ffn(monkeypatch: pytest.MonkeyPatch, side: lanes.Side, tokens: tuple[int, ...]) -> list[tuple[int, int]]:
    """The same step on the FFN role; what was computed, in order."""
    monkeypatch.setattr(dbo_ffn, "torch", side)
    computed: list[tuple[int, int]] = []

    def compute(layer: int, hidden: torch.Tensor, _router: torch.Tensor | None = None) -> torch.Tensor:
        side.enqueue("compute", f"FFN {layer}")
        computed.append((layer, hidden.shape[0]))
        return hidden

    Overlapped(FFNEnd(side), compute)(Gathered((Member(0, 1, Step(1, Mode.EAGER, tokens)),)))
    return computed


@pytest.mark.parametrize("one_stream", [False, True])
def test_nothing_waits_in_a_circle(monkeypatch: pytest.MonkeyPatch, one_stream: bool) -> None:
    """Nor if the attention device ran its streams one after the other."""
    attention, ffn = lanes.Side(one_stream), lanes.Side()
    tokens = enqueue_attention(monkeypatch, attention)
    assert tokens == (2, 3)
    computed = enqueue_ffn(monkeypatch, ffn, tokens)
    assert computed == [(layer, rows) for layer in range(LAYERS) for rows in tokens]
    assert (len(attention.streams), len(ffn.streams)) == (1 if one_stream else 2, 3)
    assert lanes.run(attention, ffn) == []


def test_on_one_stream_each_unbuffered_transfers_would_be_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is why there are others: this shows that the run would notice."""
    attention, ffn = lanes.Side(one_stream=True), lanes.Side(one_stream=True)
    port = AttentionEnd(attention)
    split = Split(monkeypatch, port)
    split.run(torch.ones(4, WIDTH), 2)
    step = port.steps[0]
    end, gathered = FFNEnd(ffn), Gathered((Member(0, 1, step),))
    for layer, stage in gathered.exchanges(LAYERS):
        work = end.take(gathered, layer, stage)
        assert work is not None
        end.send(work, work.hidden)
    assert lanes.run(attention, ffn) == [
        "main: ('send', ('requests', 0, 1))", "main: ('send', ('answers', 0, 0))",
    ]  # fmt: skip


def test_a_stage_without_rows_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    ffn = lanes.Side()
    assert enqueue_ffn(monkeypatch, ffn, (3, 0)) == [(layer, 3) for layer in range(LAYERS)]
    answers = [what for stream in ffn.streams for kind, what in stream.todo if kind == "send"]
    assert answers == [(BACK, layer, 0) for layer in range(LAYERS)]


def test_after_a_step_the_main_stream_has_waited_for_both_others(monkeypatch: pytest.MonkeyPatch) -> None:
    ffn = lanes.Side()
    enqueue_ffn(monkeypatch, ffn, (2, 2))
    main, *others = ffn.streams
    ends = [stream.todo[-1] for stream in others]
    assert all(kind == "record" for kind, _ in ends)
    assert list(main.todo)[-2:] == [("wait", event) for _, event in ends]


def test_every_send_of_the_attention_role_is_joined_before_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph may not be left with a stream that does not come back."""
    attention = lanes.Side()
    enqueue_attention(monkeypatch, attention)
    main, side = attention.streams
    left = [event for kind, event in side.todo if kind == "record"]
    joined = [event for kind, event in main.todo if kind == "wait"]
    assert len(left) == 2 * LAYERS
    assert sorted(map(id, left)) == sorted(map(id, joined))
