"""What CUDA adds to the attention role: replays are announced before they run."""

from __future__ import annotations

from types import SimpleNamespace

from afd_connectors.step import Mode, Step
from afd_models.exchange import Exchange
from afd_models.shares import AllRows
from afd_workers.cuda_attention import announce_replays


def test_every_replay_is_announced_with_its_padded_rows_before_it_runs() -> None:
    did: list[object] = []
    exchange = Exchange()
    exchange.connect(SimpleNamespace(begin=did.append), 0, AllRows())
    manager = SimpleNamespace(run_fullgraph=lambda desc: did.append(desc) or "hidden states")
    announce_replays(manager, exchange, 27)
    for rows in (8, 4):
        desc = SimpleNamespace(num_tokens=rows, num_ubatches=1)
        assert manager.run_fullgraph(desc) == "hidden states"
        assert did[-1] is desc
    assert did[0::2] == [Step(1, Mode.REPLAY, (8,)), Step(2, Mode.REPLAY, (4,))]
    assert (exchange.figures.steps, exchange.figures.exchanges) == (2, 54)


def test_no_manager_is_no_mistake() -> None:
    announce_replays(None, Exchange(), 1)
