"""Steps in which an FFN rank was lost are run again: every token right, none seen before, whatever lay in between."""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_connectors.errors import PeerLost
from afd_workers import cuda_failover, cuda_recapture
from afd_workers.cuda_failover import Failover, Guarded
from afd_workers.cuda_recapture import Graphs
from tests.support import fake_runner
from tests.support.fake_runner import BLOCK, FakePort, FakeRunner

SLOTS, LENGTH, BLOCKS, CHUNK, DEPTH = 3, 24, 20, 5, 2


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def drained(_runner: object, port: FakePort, _limit_s: float) -> None:
        with port.awaiting():
            return

    monkeypatch.setattr(cuda_recapture, "drained", drained)
    monkeypatch.setattr(cuda_failover, "obstacle", lambda _runner: None)
    monkeypatch.setattr("vllm.v1.worker.gpu.input_batch.combine_sampled_and_draft_tokens", fake_runner.combine)
    monkeypatch.setattr(cuda_recapture, "CUDAGraphMode", SimpleNamespace(FULL="FULL"))
    monkeypatch.setattr(cuda_recapture, "set_current_vllm_config", nullcontext)


class Request:
    """One client's, as a scheduler that is a step ahead of the tokens sees it."""

    def __init__(self, name: str, arrival: int, prompt: list[int], most: int, penalty: bool) -> None:
        self.name, self.arrival, self.tokens, self.most, self.penalty = name, arrival, list(prompt), most, penalty
        self.prompt_len = len(prompt)
        self.blocks: list[int] = []
        self.computed = self.prefill = self.pending = 0
        self.done = False

    @property
    def running(self) -> bool:
        return bool(self.blocks)


class Engine:
    """Dispatches a step before it reads the one before, as vLLM's asynchronous scheduling does."""

    def __init__(
        self, requests: list[Request], breaks: set[int], preempt: set[int], *, graphs: bool, parts: bool = False
    ) -> None:
        self.port = FakePort(breaks)
        self.runner = FakeRunner(self.port, slots=SLOTS, length=LENGTH, blocks=BLOCKS, graphs=graphs, parts=parts)
        self.failover = Failover(self.runner, self.port, Graphs(self.runner, self.port, object, 1.0, 5.0))
        self.requests, self.preempt = requests, preempt
        self.free = list(range(1, BLOCKS))
        self.finished: set[str] = set()
        self.step = 0
        self.warm_up()

    def warm_up(self) -> None:
        """Two steps that nobody reads, as vLLM runs some of before it serves; their blocks go to requests."""
        served, self.requests = self.requests, [Request("warm-up", 1, [1, 2, 3], 4, False)]
        preempt, self.preempt = self.preempt, set()
        for _ in range(2):
            scheduled = self.schedule()
            self.failover.dispatch(scheduled, self.runner.execute_model)
            self.failover.sample(None, self.runner.sample_tokens)
        self.finished.add("warm-up")
        self.leave(self.requests[0])
        self.requests, self.preempt, self.step = served, preempt, 0
        self.failover.warmed_up()

    def run(self) -> dict[str, list[int]]:
        queue: deque[tuple[object, list[str]]] = deque()
        while self.step < 400 and not (all(request.done for request in self.requests) and not queue):
            scheduled = self.schedule()
            output = self.failover.dispatch(scheduled, self.runner.execute_model)
            if scheduled.counts:
                assert output is None
                queue.append((self.failover.sample(None, self.runner.sample_tokens), list(scheduled.counts)))
            if len(queue) == DEPTH or (queue and not scheduled.counts):
                self.update(queue.popleft()[0])
        return {request.name: request.tokens[request.prompt_len :] for request in self.requests}

    def schedule(self) -> SimpleNamespace:
        self.step += 1
        found = SimpleNamespace(
            finished_req_ids=self.finished,
            preempted_req_ids=set(),
            kv_cache_block_copies=None,
            new=[],
            blocks={},
            counts={},
        )
        self.finished = set()
        running = [request for request in self.requests if request.running]
        if self.step in self.preempt and running:
            self.leave(running[-1])
            found.preempted_req_ids.add(running[-1].name)
        for request in self.requests:
            waiting = not (request.running or request.done or request.pending) and request.arrival <= self.step
            needed = -(-(request.prompt_len + request.most) // BLOCK)
            held = sum(each.running for each in self.requests)
            if waiting and request.name not in found.preempted_req_ids and held < SLOTS and needed <= len(self.free):
                request.blocks = [self.free.pop() for _ in range(needed)]
                request.computed, request.prefill = 0, len(request.tokens)
                found.new.append(request)
                found.blocks[request.name] = request.blocks
            if not request.running:
                continue
            left = request.prefill - request.computed
            count = min(left, CHUNK) if left > 0 else 1
            if left <= 0 and len(request.tokens) + request.pending - request.prompt_len >= request.most:
                continue
            found.counts[request.name] = count
            request.computed += count
            request.pending += request.computed >= request.prefill
        return found

    def update(self, output: object) -> None:
        assert isinstance(output, Guarded)
        for name, tokens in output.get_output().items():  # type: ignore[attr-defined]
            request = next(each for each in self.requests if each.name == name)
            request.pending -= len(tokens)
            if request.done:
                continue
            request.tokens += tokens
            if tokens and (tokens[0] % 11 == 0 or len(request.tokens) - request.prompt_len >= request.most):
                request.done = True
                self.finished.add(name)
                self.leave(request)

    def leave(self, request: Request) -> None:
        """Its blocks are the next to be given away."""
        self.free += request.blocks
        request.blocks = []


PROMPTS = st.tuples(
    st.integers(1, 12), st.lists(st.integers(0, 49), min_size=1, max_size=9), st.integers(1, 9), st.booleans()
)


def requests(drawn: list[tuple[int, list[int], int, bool]]) -> list[Request]:
    return [Request(f"r{number}", *each) for number, each in enumerate(drawn)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(PROMPTS, min_size=1, max_size=6), st.sets(st.integers(1, 120), min_size=1, max_size=5),
    st.sets(st.integers(2, 40), max_size=3), st.booleans(), st.booleans(),
)  # fmt: skip
def test_every_token_is_right_whenever_ranks_are_lost(drawn, breaks, preempt, graphs, parts) -> None:
    expected = Engine(requests(drawn), set(), preempt, graphs=graphs, parts=parts).run()
    engine = Engine(requests(drawn), breaks, preempt, graphs=graphs, parts=parts)
    assert engine.run() == expected
    assert all(len(tokens) >= 1 for tokens in expected.values())
    assert not engine.failover._flights


LONG = [(1, [3, 1, 4], 9, False), (1, [2, 7], 9, True), (2, [1, 8, 2, 8, 1, 8], 9, False)]


@pytest.mark.parametrize("graphs", [True, False])
def test_without_a_loss_nothing_is_run_twice(graphs: bool) -> None:
    engine = Engine(requests(LONG), set(), set(), graphs=graphs)
    engine.run()
    assert engine.failover.told()["losses"] == 0
    assert engine.runner.captures == (SLOTS if graphs else 0)
    assert len(engine.failover._shadows._idle) == DEPTH


def test_two_steps_are_run_again_and_only_the_graphs_they_need_are_captured_at_once() -> None:
    engine = Engine(requests(LONG), {15}, set(), graphs=True)
    engine.run()
    told = engine.failover.told()
    assert (told["losses"], told["repeated"], engine.port.rejoins) == (1, 2, 1)
    assert SLOTS < engine.runner.captures <= 2 * SLOTS


def test_graphs_that_outlast_a_connection_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakePort, "lasting", True)
    engine = Engine(requests(LONG), {15}, set(), graphs=True)
    assert engine.run() == Engine(requests(LONG), set(), set(), graphs=True).run()
    assert (engine.port.rejoins, engine.runner.captures) == (1, SLOTS)


def test_what_cannot_be_run_again_ends_with_the_reason() -> None:
    engine = Engine(requests(LONG), {15}, set(), graphs=True)
    engine.failover._obstacle = "LoRA"
    with pytest.raises(PeerLost, match="it is gone; with LoRA a step cannot be run again: restart this server"):
        engine.run()


def test_graphs_of_several_processes_are_not_captured_again_by_one() -> None:
    engine = Engine(requests(LONG), set(), set(), graphs=True)
    engine.run()
    graphs = engine.failover._graphs
    graphs._together, captures = True, engine.runner.captures
    engine.port._noticed = True
    with pytest.raises(PeerLost, match="cannot capture its graphs again alone: restart this server"):
        graphs.mend()
    assert (engine.port.rejoins, engine.runner.captures) == (0, captures)
