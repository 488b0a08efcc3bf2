"""Greedy tokens in every topology equal those of native vLLM on the same checkpoint."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from afd_workers.demo.client import Client
from afd_workers.launch import cores
from afd_workers.launch.free import free_ports
from afd_workers.launch.plan import LOOPBACK, Request, Server, split
from afd_workers.launch.topology import Topology
from tests.support.checkpoints import Checkpoint
from tests.support.forks import Fork
from tests.support.offline import BATCH_DONE, Batch, Outcome, Run
from tests.support.prompts import prompts
from tests.support.servers import OPTIONS, base, environment, forked, section_of, wait, wait_ready
from tests.support.sockets import probe
from tools.streams import Crowd

pytestmark = pytest.mark.timeout(600)  # starting servers takes a minute where the machine is busy
LAYERS, TOKENS = 4, 24
SINGLES = prompts(4, 3, 40, seed=1)
BATCH = prompts(8, 3, 40, seed=2)
#: Four prompts one after the other, then eight at once.
BATCHES: list[Batch] = [*([prompt] for prompt in SINGLES), BATCH]
LONG = 120  # tokens, when something is to happen while they are generated
#: vLLM's default differs between servers and offline engines, and both roles must agree on it.
ROWS = 512
TENSOR = 2
TIMEOUT_S, ENDING_S = 4.0, 20.0
#: vLLM binds tensor-parallel processes to processors, which it cannot choose on a host with one memory node.
BOUND = cores.environment([block[:1] for block in cores.blocks(TENSOR)])


def plan(model: Path, topology: str, *options: str) -> tuple[Server, ...]:
    """(attention, *ffn) as ``afd serve`` starts them."""
    options = (*OPTIONS, "--max-num-batched-tokens", str(ROWS), *options)
    section = {"timeout_s": TIMEOUT_S}
    wanted = Request(str(model), Topology.parse(topology), LOOPBACK, free_ports(1)[0], options, section)
    return split(wanted, environment(), cpu=True)


@contextmanager
def running(servers: Sequence[Server], folder: Path) -> Iterator[list[Fork]]:
    """All ready; stopped at the end."""
    with ExitStack() as stack:
        forks = [stack.enter_context(forked(server, folder)) for server in servers]
        for server, fork in zip(servers, forks, strict=True):
            wait_ready(server, fork)
        yield forks


def offline(folder: Path, model: Path, attention: Server | None = None, *, rank: int = 0, tensor: int = 1) -> Run:
    """An engine of its own, native or with the section of ``attention``, on all batches."""
    options: dict[str, object] = {"model": str(model), "max_model_len": 512, "max_num_batched_tokens": ROWS}
    options["tensor_parallel_size"] = tensor
    if attention is not None:
        config = section_of(attention)
        section = config["afd"]
        assert isinstance(section, Mapping)
        options["additional_config"] = {**config, "afd": {**section, "rank": rank}}
    return Run(folder, options, BATCHES, tokens=TOKENS, env=BOUND if tensor > 1 else None)


def served(attention: Server) -> list[Batch]:
    """All batches over HTTP, grouped as they are offline."""
    client = Client(base(attention), "toy")

    def complete(prompt: list[int]) -> list[int]:
        return list(client.complete(prompt, TOKENS).tokens)

    singles = [[complete(prompt)] for prompt in SINGLES]
    with ThreadPoolExecutor(len(BATCH)) as pool:
        return [*singles, list(pool.map(complete, BATCH))]


@pytest.fixture(scope="module")
def model(checkpoint: Checkpoint) -> Path:
    return checkpoint("qwen3-moe")


@pytest.fixture(scope="module")
def native(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Batch]:
    found = offline(tmp_path_factory.mktemp("native"), model).outcome().tokens
    assert all(len(tokens) == TOKENS for batch in found for tokens in batch)
    return found


class TestTwoAttentionRanksShareAnFFNRank:
    """First of one attention server and then of two."""

    def test_of_one_data_parallel_server(self, model: Path, native: list[Batch], tmp_path: Path) -> None:
        attention, ffn = plan(model, "2A1F")
        with ExitStack() as stack:
            killed = stack.enter_context(forked(ffn, tmp_path))
            stack.enter_context(running([attention], tmp_path))
            assert served(attention) == native
            undisturbed = Crowd(base(attention), BATCH, LONG)
            undisturbed.wait_end(60)
            assert probe(attention.health) == (200, {"status": "serving"})

            crowd = Crowd(base(attention), BATCH, LONG)
            crowd.wait_tokens(TOKENS)
            killed.signal(signal.SIGKILL)
            wait("health's word on whom attention waits for", lambda: waits(attention), 10)
            code, said = probe(f"{base(attention)}/ready")
            assert (code, said["status"], said["for"]) == (503, "waiting", ["FFN rank 0"])
            assert 0.9 < float(str(said["since_s"])) < 10
            stack.enter_context(forked(ffn, tmp_path))
            crowd.wait_end(120)
            assert (crowd.tokens, crowd.errors) == (undisturbed.tokens, [])
            assert [tokens[:TOKENS] for tokens in crowd.tokens] == native[-1]
            assert probe(f"{base(attention)}/ready") == (200, {"status": "serving"})

    def test_of_two_servers_at_once(self, model: Path, native: list[Batch], tmp_path: Path) -> None:
        attention, ffn = plan(model, "2A1F")
        with running([ffn], tmp_path):
            two_engines(tmp_path, model, attention, native)


def test_one_attention_rank_splits_its_rows_over_two_ffn_ranks(
    model: Path, native: list[Batch], tmp_path: Path
) -> None:
    attention, *ffn = plan(model, "1A2F")
    with running(ffn, tmp_path):
        outcome = offline(tmp_path, model, attention).outcome()
    assert outcome.tokens == native
    assert whole(outcome)


def test_the_loss_of_one_of_two_ffn_ranks_holds_up_only_who_exchanges_with_it(
    model: Path, native: list[Batch], tmp_path: Path
) -> None:
    attention, *ffn = plan(model, "2A2F")
    with ExitStack() as stack:
        _, lost = stack.enter_context(running(ffn, tmp_path))
        runs = [offline(tmp_path, model, attention, rank=rank) for rank in range(2)]
        for run in runs:
            stack.callback(run.end)
        wait("the other's first batch", lambda: BATCH_DONE.format(1, len(BATCHES)) in runs[1].lines())
        lost.signal(signal.SIGKILL)
        assert right(runs[0].outcome(), native)
        assert BATCH_DONE.format(len(BATCHES), len(BATCHES)) not in runs[1].lines()
        stack.enter_context(forked(ffn[1], tmp_path))
        assert right(runs[1].outcome(), native)


@pytest.fixture(scope="module")
def tensor_native(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Batch]:
    return offline(tmp_path_factory.mktemp("native"), model, tensor=TENSOR).outcome().tokens


@pytest.fixture(scope="module")
def tensor_roles(model: Path) -> tuple[Server, Server]:
    attention, ffn = plan(model, "1A1F", "--tensor-parallel-size", str(TENSOR))
    return attention, ffn


class TestTensorParallelRoles:
    """Compared with tensor-parallel vLLM: more partial sums are rounded, and so give other tokens natively too."""

    def test_tokens_are_those_of_tensor_parallel_vllm(
        self, model: Path, tensor_roles: tuple[Server, Server], tensor_native: list[Batch], tmp_path: Path
    ) -> None:
        attention, ffn = tensor_roles
        with running([ffn], tmp_path):
            outcome = offline(tmp_path, model, attention, tensor=TENSOR).outcome()
        assert outcome.tokens == tensor_native
        assert whole(outcome)

    @pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
    def test_an_ffn_rank_that_lost_a_process_ends_and_is_replaced(
        self,
        model: Path,
        tensor_roles: tuple[Server, Server],
        tensor_native: list[Batch],
        tmp_path: Path,
        fault: signal.Signals,
    ) -> None:
        attention, ffn = tensor_roles
        with ExitStack() as stack:
            [broken] = stack.enter_context(running([ffn], tmp_path))
            run = offline(tmp_path, model, attention, tensor=TENSOR)
            stack.callback(run.end)
            wait("the first batch", lambda: BATCH_DONE.format(1, len(BATCHES)) in run.lines())
            [member] = set(re.findall(r"^\(Worker_TP1 pid=(\d+)\)", "\n".join(broken.lines()), re.MULTILINE))
            os.kill(int(member), fault)
            wait("the end of the whole FFN server", lambda: not broken.session(), TIMEOUT_S + ENDING_S)
            sentence = (
                rf"AFD FFN rank 0 ends: expected its {TENSOR} processes, found that process 1 (ended|has stood still)"
            )
            assert any(re.search(sentence, line) for line in broken.lines()), "\n".join(broken.lines()[-60:])
            stack.enter_context(forked(ffn, tmp_path))
            outcome = run.outcome()
        assert outcome.tokens == tensor_native
        assert whole(outcome)


def two_engines(folder: Path, model: Path, attention: Server, native: list[Batch]) -> None:
    """Independent attention ranks 0 and 1, both busy at the same time."""
    runs = [offline(folder, model, attention, rank=rank) for rank in range(2)]
    for outcome in [run.outcome() for run in runs]:
        assert right(outcome, native)


def waits(attention: Server) -> bool:
    """Whether it says that it lives and waits for FFN rank 0."""
    code, said = probe(attention.health)
    return (code, said.get("status"), said.get("for")) == (200, "waiting", ["FFN rank 0"])


def right(outcome: Outcome, native: list[Batch]) -> bool:
    """Whether its tokens are native vLLM's and every step was exchanged."""
    return outcome.tokens == native and whole(outcome)


def whole(outcome: Outcome) -> bool:
    """Whether every step exchanged every layer once."""
    figures = outcome.figures
    assert figures is not None
    return figures["exchanges"] == LAYERS * figures["steps"] >= LAYERS * len(BATCHES) * TOKENS
