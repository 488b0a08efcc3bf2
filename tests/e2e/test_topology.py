"""Greedy tokens in every topology equal those of native vLLM on the same checkpoint."""

from __future__ import annotations

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
from tests.support.offline import Batch, Outcome, Run
from tests.support.prompts import prompts
from tests.support.servers import OPTIONS, base, environment, section_of, started, wait

pytestmark = pytest.mark.timeout(600)  # starting servers takes a minute or two
LAYERS, TOKENS, READY_S = 4, 32, 300.0
SINGLES = prompts(8, 3, 40, seed=1)
BATCH = prompts(8, 3, 40, seed=2)
#: Eight prompts one after the other, then eight at once.
BATCHES: list[Batch] = [*([prompt] for prompt in SINGLES), BATCH]
#: vLLM's default differs between servers and offline engines, and both roles must agree on it.
ROWS = 512
TENSOR = 2
#: vLLM binds tensor-parallel processes to processors, which it cannot choose on a host with one memory node.
BOUND = cores.environment([block[:1] for block in cores.blocks(TENSOR)])


def plan(model: Path, topology: str, *options: str) -> tuple[Server, ...]:
    """(attention, *ffn) as ``afd serve`` starts them."""
    options = (*OPTIONS, "--max-num-batched-tokens", str(ROWS), *options)
    wanted = Request(str(model), Topology.parse(topology), LOOPBACK, free_ports(1)[0], options)
    return split(wanted, environment(), cpu=True)


@contextmanager
def running(servers: Sequence[Server]) -> Iterator[None]:
    """All ready; stopped at the end."""
    with ExitStack() as stack:
        logs: list[list[str]] = [[] for _ in servers]
        processes = [stack.enter_context(started(*each)) for each in zip(servers, logs, strict=True)]
        for process, log in zip(processes, logs, strict=True):
            wait(process.server.name, lambda p=process: p.is_ready() or p.exit_code() is not None, READY_S)
            assert process.exit_code() is None, "\n".join(log[-30:])
        yield


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
def native_run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Started beside the first servers: a server's processes start one after another and leave a core free."""
    return offline(tmp_path_factory.mktemp("native"), model)


@pytest.fixture
def native(native_run: Run) -> list[Batch]:
    found = native_run.outcome().tokens
    assert all(len(tokens) == TOKENS for batch in found for tokens in batch)
    return found


@pytest.fixture(scope="class")
def attention(model: Path, native_run: Run) -> Iterator[Server]:
    """The attention server of 2A1F, not started, whose FFN server is up."""
    attention, ffn = plan(model, "2A1F")
    with running([ffn]):
        yield attention


class TestTwoAttentionRanksShareAnFFNRank:
    """First of one attention server and then of two, on the same FFN server."""

    def test_of_one_data_parallel_server(self, attention: Server, native: list[Batch]) -> None:
        with running([attention]):
            assert served(attention) == native

    def test_of_two_servers_at_once(self, attention: Server, model: Path, native: list[Batch], tmp_path: Path) -> None:
        two_engines(tmp_path, model, attention, native)


def test_one_attention_rank_splits_its_rows_over_two_ffn_ranks(
    model: Path, native: list[Batch], tmp_path: Path
) -> None:
    attention, *ffn = plan(model, "1A2F")
    with running(ffn):
        outcome = offline(tmp_path, model, attention).outcome()
    assert outcome.tokens == native
    assert whole(outcome)


def test_two_attention_ranks_with_an_ffn_rank_each(model: Path, native: list[Batch], tmp_path: Path) -> None:
    attention, *ffn = plan(model, "2A2F")
    with running(ffn):
        two_engines(tmp_path, model, attention, native)


def test_tensor_parallel_roles_give_the_tokens_of_tensor_parallel_vllm(model: Path, tmp_path: Path) -> None:
    """Not those of one process: partial sums are rounded, so that more of them give other tokens natively too."""
    attention, ffn = plan(model, "1A1F", "--tensor-parallel-size", str(TENSOR))
    native = offline(tmp_path, model, tensor=TENSOR)
    with running([ffn]):
        outcome = offline(tmp_path, model, attention, tensor=TENSOR).outcome()
    assert outcome.tokens == native.outcome().tokens
    assert whole(outcome)


def two_engines(folder: Path, model: Path, attention: Server, native: list[Batch]) -> None:
    """Independent attention ranks 0 and 1, both busy at the same time."""
    runs = [offline(folder, model, attention, rank=rank) for rank in range(2)]
    for outcome in [run.outcome() for run in runs]:
        assert outcome.tokens == native
        assert whole(outcome)


def whole(outcome: Outcome) -> bool:
    """Whether every step exchanged every layer once."""
    figures = outcome.figures
    assert figures is not None
    return figures["exchanges"] == LAYERS * figures["steps"] >= LAYERS * len(BATCHES) * TOKENS
