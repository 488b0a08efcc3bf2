"""Split steps over nccl-p2p's own protocol: vLLM's microbatch threads here, the FFN role's step loop there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

from afd_connectors.errors import ConnectorError
from afd_connectors.shape import Shape
from afd_connectors.step import Mode
from afd_connectors.stepped import SteppedFFNPort
from afd_connectors.testing.group import Group
from afd_workers import cuda_ffn, dbo_ffn
from afd_workers.cuda_ffn import StepSource
from tests.support import lanes
from tests.support.fake_nccl import FakeNccl, FakeP2p
from tests.vllm.workers.test_dbo import LAYERS, WIDTH, Split


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Group, StepSource]]:
    """A deployment whose FFN rank triples rows on a thread of its own."""
    monkeypatch.setattr(FakeP2p, "library", FakeNccl())
    monkeypatch.setattr(dbo_ffn, "torch", lanes.Side())
    monkeypatch.setattr(cuda_ffn.Recorder, "__call__", lambda _, enqueue: enqueue() or enqueue)
    with Group(FakeP2p, Shape(16, WIDTH, "float32", LAYERS, 2)) as group:
        port = group.build("ffn").open_ffn()
        assert isinstance(port, SteppedFFNPort)
        source = StepSource(port, lambda layer, hidden, _router: hidden * 3 + layer)
        source._pace = SimpleNamespace(free=lambda _: True, begun=lambda: None)  # waits for a device
        thread = threading.Thread(target=serve, args=(source,), daemon=True)
        thread.start()
        yield group, source
        source.close()
        thread.join(10)
        assert not thread.is_alive()


def serve(source: StepSource) -> None:
    try:
        while source.serve_one():
            continue
    except ConnectorError:  # closed at the end of the test
        return


def expected(hidden: torch.Tensor) -> torch.Tensor:
    for layer in range(LAYERS):
        hidden = hidden * 3 + layer + 1
    return hidden


def test_split_and_whole_steps_alternate_and_every_row_comes_back_to_its_place(
    served: tuple[Group, StepSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    group, source = served
    port = group.open_attention()
    split = Split(monkeypatch, port)
    for rows, first in ((5, 2), (7, 3), (16, 8), (2, 1)):
        hidden = torch.arange(float(rows * WIDTH)).reshape(rows, WIDTH) % 7
        assert torch.equal(split.run(hidden, first), expected(hidden))
        assert torch.equal(split.model(hidden), expected(hidden))
    figures = source.figures()
    assert (figures["eager"], figures["split"], figures["missing"]) == (8, 4, 0)
    port.witness()()


@pytest.mark.parametrize("tokens", [(4, 4), (3, 5)])
def test_a_split_step_is_captured_and_replayed_under_its_own_key(
    served: tuple[Group, StepSource], tokens: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graphs of this test are the calls themselves, so that a captured step moves rows, as a replayed one does."""
    group, source = served
    split = Split(monkeypatch, group.open_attention())
    hidden = torch.ones(sum(tokens), WIDTH)
    begin: Callable[..., None] = split.exchange._begin
    for mode in (Mode.CAPTURE, Mode.REPLAY, Mode.REPLAY):
        monkeypatch.setattr(split.exchange, "_begin", lambda _, counts, mode=mode: begin(mode, counts))
        assert torch.equal(split.run(hidden, tokens[0]), expected(hidden))
    monkeypatch.setattr(split.exchange, "_begin", begin)
    split.exchange.split(type(split.exchange._batches)(split.lane))
    assert torch.equal(split.model(hidden), expected(hidden))
    figures = source.figures()
    assert (figures["captured"], figures["replayed"], figures["missing"], figures["eager"]) == (1, 2, 0, 1)
    ((_, _, captured),) = next(iter(source.steps.keys()))
    assert captured == tokens
