"""What CUDA adds to the attention role: replays are announced before they run, void tokens never leave."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from vllm.v1.outputs import AsyncModelRunnerOutput

from afd_connectors.errors import PeerLost
from afd_connectors.step import Mode, Step
from afd_models.exchange import Exchange
from afd_models.shares import AllRows
from afd_workers.cuda_attention import announce_replays, witnessed


class Output(AsyncModelRunnerOutput):
    def __init__(self, did: list[str]) -> None:
        self.did = did

    def get_output(self) -> str:
        self.did.append("read")
        return "tokens"


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


def test_the_check_comes_after_the_device_is_done_and_before_anyone_sees_a_token() -> None:
    did: list[str] = []
    output = witnessed(Output(did), lambda: did.append("checked"))
    assert isinstance(output, AsyncModelRunnerOutput)
    assert did == []
    assert output.get_output() == "tokens"
    assert did == ["read", "checked"]


@pytest.mark.parametrize("ready", [True, False])
def test_a_void_step_raises_instead(ready: bool) -> None:
    def check() -> None:
        raise PeerLost("it is gone")

    def read() -> object:
        output = witnessed("tokens" if ready else Output([]), check)
        return output.get_output()  # type: ignore[attr-defined]

    with pytest.raises(PeerLost, match="it is gone"):
        read()
    assert witnessed(None, check) is None
