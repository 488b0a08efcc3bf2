"""Start-up times split and whole steps of a runner that is vLLM's as far as it is asked, and steps follow from it."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from vllm.config import CUDAGraphMode
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor

from afd_compat.config import Config
from afd_connectors.errors import PeerLost
from afd_workers import dbo_timing
from afd_workers.dbo_attention import On, Overlap, overlap_of
from afd_workers.dbo_rule import NEVER
from afd_workers.dbo_timing import halving
from tests.support import ubatches

EACH = 1.0  # milliseconds per 64 rows of a stage, plus FLOOR: what an FFN role takes whatever the rows
FLOOR = 4.0


def mixed(ids: torch.Tensor) -> bool:
    """Whether the rows go to more experts than a few."""
    return len(ids.unique()) > len(ids) / 4


class Model(torch.nn.Module):
    """Sees what it is called with."""

    def forward(self, *, input_ids: torch.Tensor) -> None:
        assert mixed(input_ids)


class Runner:
    """A model runner whose steps take as long as attention and FFN would, by a clock of its own."""

    def __init__(self, sizes: list[int], longest: int = 8192) -> None:
        self.vllm_config = ubatches.config(decode=32, prefill=512)
        self.vllm_config.scheduler_config = SimpleNamespace(max_num_batched_tokens=4096)
        self.max_model_len = longest
        self.now = 0.0
        self.context = 0
        self.ubatch_runner: object = "there"
        self.steps: list[tuple[int, bool, bool, int]] = []
        graphs = [
            BatchExecutionDescriptor(CUDAGraphMode.FULL, rows, rows, 1, num_ubatches=count)
            for rows in sizes
            for count in (1, 2)[: 2 if rows >= 32 else 1]
        ]
        self.cudagraph_manager = SimpleNamespace(graphs=dict.fromkeys(graphs), run_fullgraph=self.replay)
        self.vllm_config.model_config = SimpleNamespace(get_vocab_size=lambda: 50000)
        self.model, self.input_buffers = Model(), SimpleNamespace(input_ids=torch.zeros(4096, dtype=torch.int32))

    def replay(self, desc: BatchExecutionDescriptor) -> None:
        assert mixed(self.input_buffers.input_ids[: desc.num_tokens])
        self.take(desc.num_tokens, desc.num_ubatches > 1)

    def take(self, rows: int, split: bool) -> None:
        attention = rows / 64 * EACH * (1 + self.context / 1000)
        self.now += max(attention, 2 * FLOOR) if split else attention + FLOOR

    def _dummy_run(self, rows: int, *, uniform_decode: bool, context_len: int) -> None:
        parallel = self.vllm_config.parallel_config
        threshold = parallel.dbo_decode_token_threshold if uniform_decode else parallel.dbo_prefill_token_threshold
        self.model(input_ids=torch.zeros(rows, dtype=torch.int32))
        self.context = context_len
        self.steps.append((rows, uniform_decode, rows >= threshold, context_len))
        self.take(rows, rows >= threshold)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[Runner]:
    """Device events that read the clock of the runner in the list."""
    runners: list[Runner] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = runners[0].now

        def synchronize(self) -> None:
            return

        def elapsed_time(self, other: Event) -> float:
            return other.at - self.at

    monkeypatch.setattr(dbo_timing, "torch", SimpleNamespace(cuda=SimpleNamespace(Event=Event), Tensor=torch.Tensor))
    return runners


def scheduled(*computed: int) -> SimpleNamespace:
    return SimpleNamespace(scheduled_cached_reqs=SimpleNamespace(num_computed_tokens=list(computed)))


def test_steps_are_split_where_the_timings_say_that_it_pays(clock: list[Runner]) -> None:
    runner = Runner([1, 16, 32, 64, 128, 256, 384, 512])
    clock.append(runner)
    on, checked = On(Config(role="attention")), []
    on.captured(runner, nullcontext, lambda: checked.append(True))
    assert checked == [True]
    parallel = runner.vllm_config.parallel_config
    tried = [(rows, split, context) for rows, decode, split, context in runner.steps if decode]
    assert {rows for rows, _, _ in tried} == {512, 256, 128, 64, 32}, "halves of the largest, until none is left"
    assert {(split, context) for _, split, context in tried} == {(a, b) for a in (True, False) for b in (0, 4096)}
    found = {}
    for context in (0, 500, 4096):
        with on.step(scheduled(context)):
            found[context] = parallel.dbo_decode_token_threshold
    # Alone, 512 rows take 8 + 4 whole and max(8, 8) split; 256 rows 4 + 4 and 8, a tie; 128 rows 2 + 4 and 8, a loss.
    assert found[0] == 256
    assert found[500] <= 256
    assert found[4096] < 128
    assert parallel.dbo_prefill_token_threshold == 512


def test_where_it_always_loses_no_step_is_split(clock: list[Runner]) -> None:
    runner = Runner([1, 2, 4, 8, 32], longest=64)
    clock.append(runner)
    on = On(Config(role="attention"))
    on.captured(runner, nullcontext, lambda: None)
    with on.step(scheduled(10, 20)):
        assert runner.vllm_config.parallel_config.dbo_decode_token_threshold == NEVER


@pytest.mark.parametrize("decode_graphs", [True, False])
def test_vllms_thresholds_are_taken_where_they_are_asked_for_or_nothing_can_be_timed(
    clock: list[Runner], decode_graphs: bool
) -> None:
    runner = Runner([64])
    clock.append(runner)
    on = On(Config(role="attention", dbo_rule="thresholds"))
    if not decode_graphs:
        runner.ubatch_runner = None
        on = On(Config(role="attention"))
    on.captured(runner, nullcontext, lambda: None)
    with on.step(scheduled(10)):
        assert runner.vllm_config.parallel_config.dbo_decode_token_threshold == 32
    assert runner.steps == []


def test_a_peer_that_was_lost_meanwhile_ends_start_up(clock: list[Runner]) -> None:
    runner = Runner([64])
    clock.append(runner)

    def check() -> None:
        raise PeerLost("FFN rank 0 is gone")

    with pytest.raises(PeerLost):
        On(Config(role="attention")).captured(runner, nullcontext, check)


def test_without_microbatching_nothing_of_it_is_there() -> None:
    found = overlap_of(ubatches.config(dbo=False), Config(role="attention"))
    assert type(found) is Overlap
    exchange = SimpleNamespace()  # would raise if it were split
    found.begin(exchange, torch.device("cpu"))
    with found.building, found.step(scheduled(1)):
        found.captured(SimpleNamespace(), nullcontext, lambda: None)
    assert type(overlap_of(ubatches.config(), Config(role="attention"))) is On


def test_few_sizes_stand_for_many() -> None:
    assert halving([*range(8, 257, 8), *range(272, 513, 16)]) == [512, 256, 128, 64, 32, 16, 8]
    assert halving([]) == []
