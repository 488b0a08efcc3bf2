"""Two real microbatch threads of vLLM exchange through one port: stages, turns, and failures that park nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.worker.gpu import model_runner
from vllm.v1.worker.gpu.ubatch_utils import UBatchRunner, UBatchState
from vllm.v1.worker.ubatch_utils import UBatchSlice, maybe_create_ubatch_slices

from afd_compat.patches.gpu_mrv2_ubatching import build_at_one_rank
from afd_compat.scoped import Scope
from afd_connectors.errors import PeerLost
from afd_connectors.step import Mode, Step
from afd_models.exchange import Exchange
from afd_models.shares import AllRows
from afd_workers.dbo import EndedEarly, Ubatches, stage_tokens
from tests.support import ubatches

LAYERS, WIDTH, LIMIT_S = 4, 3, 20.0


class Port:
    """Doubles what is sent; keeps the order of all calls. fails: called with each (verb, layer, stage)."""

    def __init__(self, fails: Callable[[str, int, int], None] = lambda *_: None) -> None:
        self.did: list[tuple[object, ...]] = []
        self.steps: list[Step] = []
        self._fails, self._sent = fails, {}

    def begin(self, step: Step) -> None:
        self.steps.append(step)

    def send(self, step: Step, layer: int, hidden: torch.Tensor, router: None = None, *, stage: int = 0) -> None:
        self._fails("send", layer, stage)
        assert step is self.steps[-1]
        assert hidden.shape[0] == step.tokens[stage]
        self._sent[stage] = hidden * 2
        self.did.append(("send", layer, stage))

    def recv(self, step: Step, layer: int, out: torch.Tensor, *, stage: int = 0) -> None:
        self._fails("recv", layer, stage)
        out.copy_(self._sent.pop(stage))
        self.did.append(("recv", layer, stage))


class Lane:
    """See afd_workers.dbo.Lane."""

    def __init__(self) -> None:
        self.away: list[int] = []
        self.most = 0

    def leaving(self, stage: int) -> Lane:
        self.away.append(stage)
        self.most = max(self.most, len(self.away))
        return self

    def left(self, stage: int) -> None:
        self.away.remove(stage)

    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        return


class Split:
    """vLLM's runner of microbatches around a model that only exchanges."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, port: Port) -> None:
        ubatches.stand_in(monkeypatch)
        monkeypatch.setattr("vllm.v1.worker.gpu.ubatch_utils.torch.zeros", lambda *_, **__: None, raising=False)
        with Scope(build_at_one_rank):
            self.runner: UBatchRunner = model_runner.maybe_build_ubatch_runner(
                ubatches.config(), SimpleNamespace(index=0), None, [], None, 8
            )
        self.exchange, self.lane = Exchange(), Lane()
        self.exchange.connect(port, 0, AllRows())
        self.exchange.split(Ubatches(self.lane))

    def model(self, hidden: torch.Tensor, **_: object) -> torch.Tensor:
        for layer in range(LAYERS):
            hidden = self.exchange(hidden, layer) + 1
        return hidden

    def run(self, hidden: torch.Tensor, first: int) -> torch.Tensor:
        rows = hidden.shape[0]
        slices = [UBatchSlice(slice(0, first), slice(0, first)), UBatchSlice(slice(first, rows), slice(first, rows))]
        contexts = self.runner._make_forward_contexts(slices, [{}, {}], [{}, {}], [None, None])
        found: list[object] = []

        def step() -> None:
            try:
                found.append(
                    self.runner.run(
                        lambda inputs_embeds, **_: self.model(inputs_embeds),
                        {"inputs_embeds": hidden, "positions": torch.arange(rows)},
                        UBatchState(slices, contexts),
                    )
                )  # fmt: skip
            except RuntimeError as error:
                found.append(error)

        thread = threading.Thread(target=step, daemon=True)
        thread.start()
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "a microbatch is parked for ever"
        if isinstance(found[0], RuntimeError):
            raise found[0]
        assert isinstance(found[0], torch.Tensor)
        return found[0]


def test_each_microbatch_is_a_stage_that_is_away_while_the_other_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    port = Port()
    split = Split(monkeypatch, port)
    hidden = torch.arange(15.0).reshape(5, WIDTH)
    for seq in (1, 2):
        assert torch.equal(split.run(hidden, 2), hidden * 2**LAYERS + 2**LAYERS - 1)
        assert port.steps[-1] == Step(seq, Mode.EAGER, (2, 3))
    half = len(port.did) // 2
    assert port.did[:half] == port.did[half:]
    assert port.did[:6] == [
        ("send", 0, 0), ("send", 0, 1), ("recv", 0, 0), ("send", 1, 0), ("recv", 0, 1), ("send", 1, 1),
    ]  # fmt: skip
    sent = [each[1:] for each in port.did[:half] if each[0] == "send"]
    assert sent == [(layer, stage) for layer in range(LAYERS) for stage in (0, 1)], "the FFN role's order"
    assert (split.lane.most, split.lane.away) == (2, [])
    figures = split.exchange.figures
    assert (figures.steps, figures.exchanges) == (2, 2 * LAYERS)


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("verb", ["send", "recv"])
@pytest.mark.parametrize("layer", [0, 1, LAYERS - 1])
def test_a_failed_microbatch_ends_the_step_and_does_not_park_the_other(
    verb: str, layer: int, stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*place: object) -> None:
        if place == (verb, layer, stage):
            raise PeerLost("FFN rank 0 is gone")

    split = Split(monkeypatch, Port(fails))
    with pytest.raises(RuntimeError, match=r"Microbatch . of 2 failed") as caught:
        split.run(torch.ones(4, WIDTH), 2)
    cause = caught.value.__cause__
    if isinstance(cause, EndedEarly):
        assert stage == 1
        assert str(cause) == "microbatch 1 of this step ended early, so microbatch 0 cannot go on."
        cause = cause.__cause__
    assert isinstance(cause, PeerLost)
    assert not model_runner_threads()


def test_the_next_step_after_a_failure_is_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [True]

    def fails(*place: object) -> None:
        if broken and place == ("send", 1, 1):
            broken.clear()
            raise PeerLost("FFN rank 0 is gone")

    port = Port(fails)
    split = Split(monkeypatch, port)
    with pytest.raises(RuntimeError, match="failed"):
        split.run(torch.ones(4, WIDTH), 2)
    split.lane.away.clear()
    port._sent.clear()
    assert torch.equal(split.run(torch.ones(4, WIDTH), 2), torch.full((4, WIDTH), 2.0 ** (LAYERS + 1) - 1))


def test_without_microbatches_a_step_is_one_stage_and_nobody_yields(monkeypatch: pytest.MonkeyPatch) -> None:
    port = Port()
    split = Split(monkeypatch, port)
    hidden = torch.ones(4, WIDTH)
    split.model(hidden)
    assert port.steps == [Step(1, Mode.EAGER, (4,))]
    assert port.did[:3] == [("send", 0, 0), ("recv", 0, 0), ("send", 1, 0)]
    assert split.lane.most == 0


def test_the_yield_op_does_nothing_where_overlap_is_not_active_and_can_be_traced() -> None:
    out = torch.ones(2, 2)
    assert torch.ops.vllm.manual_dbo_yield(out) is None
    assert torch.equal(out, torch.ones(2, 2))
    assert torch.ops.vllm.manual_dbo_yield(torch.empty(2, device="meta")) is None


@given(rows=st.integers(2, 4096), count=st.just(2))
def test_replays_are_announced_with_the_halves_that_vllm_makes(rows: int, count: int) -> None:
    _, slices = maybe_create_ubatch_slices(True, np.ones(rows, dtype=np.int32), rows, rows, count)
    assert slices is not None
    found = stage_tokens(SimpleNamespace(num_tokens=rows, num_ubatches=count))
    assert found == tuple(each.num_tokens for each in slices)


def test_an_unsplit_replay_is_one_stage() -> None:
    assert stage_tokens(SimpleNamespace(num_tokens=7, num_ubatches=1)) == (7,)


def model_runner_threads() -> list[threading.Thread]:
    """Microbatch threads that are still there."""
    return [thread for thread in threading.enumerate() if "run_ubatch" in thread.name]
