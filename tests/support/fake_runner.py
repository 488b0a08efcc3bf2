"""vLLM's second model runner as the failover sees it, in plain tensors: the same names, the same order of writes.

Nothing runs later than it is enqueued, and a lost FFN rank is noticed only when the device is waited for, so that a
step and the one dispatched behind it are void before anybody knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from vllm.forward_context import get_forward_context, override_forward_context
from vllm.v1.outputs import AsyncModelRunnerOutput

from afd_connectors.errors import PeerLost

PRIME = 100_003
WORDS = 50
BLOCK = 4
GARBAGE = 31_337


class FakePort:
    """See DeviceAttentionPort. breaks: numbers of exchanges from which on a lost rank leaves garbage."""

    lasting = False

    def __init__(self, breaks: set[int]) -> None:
        self.breaks, self.count, self.generation = breaks, 0, 0
        self._broken = self._noticed = False
        self.rejoins = 0

    def exchange(self, rows: Tensor, generation: int | None = None) -> Tensor:
        self.count += 1
        self._broken = self._broken or self.count in self.breaks
        stale = generation not in (None, self.generation) and not self.lasting
        if self._broken or stale:
            return torch.full_like(rows, GARBAGE)
        return (rows * 7919 + 13) % PRIME

    def lost(self) -> bool:
        return self._noticed

    def witness(self) -> Callable[[], None]:
        taken = self.generation

        def check() -> None:
            if self._noticed or taken != self.generation:
                raise PeerLost("it is gone")

        return check

    @contextmanager
    def awaiting(self) -> Iterator[None]:
        self._noticed = self._noticed or self._broken
        yield

    def rejoin(self) -> None:
        assert self._noticed
        self._broken = self._noticed = False
        self.generation += 1
        self.rejoins += 1


class Batch(NamedTuple):
    """See InputBatch."""

    req_ids: list[str]
    idx_mapping: Tensor
    idx_mapping_np: np.ndarray
    query_start_loc: Tensor
    seq_lens: Tensor
    cu_num_logits: Tensor
    logits_indices: Tensor
    tokens: int


class State(NamedTuple):
    """See ExecuteModelState."""

    input_batch: Batch
    hidden_states: Tensor | None


class Output(AsyncModelRunnerOutput):
    """See AsyncOutput."""

    def __init__(self, req_ids: list[str], tokens: Tensor, counts: Tensor) -> None:
        self.sampler_output = SimpleNamespace(sampled_token_ids=tokens, num_sampled=counts)
        self._req_ids = req_ids

    def get_output(self) -> dict[str, list[int]]:  # type: ignore[override]
        found = self.sampler_output
        rows = zip(self._req_ids, found.sampled_token_ids.tolist(), found.num_sampled.tolist(), strict=True)
        return {name: tokens[:count] for name, tokens, count in rows}


class Model(torch.nn.Module):
    """Two exchanges, and a cache that every later token of a request depends on."""

    def __init__(self, runner: FakeRunner) -> None:
        super().__init__()
        self._runner = (runner,)

    def forward(self, input_ids: Tensor, positions: Tensor, generation: int | None = None) -> Tensor:
        runner, tables = self._runner[0], get_forward_context().attn_metadata
        port, rows = runner.port, input_ids.shape[0]
        first = port.exchange((input_ids.long() * 101 + positions * 17) % PRIME, generation)
        slots = runner.block_tables.slot_mappings[0, :rows]
        runner.cache[slots[slots >= 0]] = first[slots >= 0]
        starts = runner.input_buffers.query_start_loc
        hidden = torch.zeros(rows, dtype=torch.int64)
        for request in range(tables.shape[0]):
            for row in range(int(starts[request]), min(int(starts[request + 1]), rows)):
                at = torch.arange(int(positions[row]) + 1)
                read = runner.cache[tables[request, at // BLOCK].long() * BLOCK + at % BLOCK]
                hidden[row] = (read * (at + 1)).sum() % PRIME
        return port.exchange(hidden, generation)


class Manager:
    """See ModelCudaGraphManager; a graph holds the connections that it was captured with."""

    def __init__(self, runner: FakeRunner, sizes: tuple[int, ...]) -> None:
        self.graphs: dict[int, int] = {}
        self.pool: object = None
        self._capture_descs: dict[object, list[int]] = {"FULL": list(sizes)}
        self.hidden_states = torch.zeros(64, dtype=torch.int64)
        self._runner = runner

    def run_fullgraph(self, desc: SimpleNamespace) -> Tensor:
        runner, rows = self._runner, desc.num_tokens
        buffers = runner.input_buffers
        with override_forward_context(SimpleNamespace(attn_metadata=runner.builder)):
            out = Model.forward(runner.model, buffers.input_ids[:rows], buffers.positions[:rows], self.graphs[desc])
        self.hidden_states[:rows] = out
        return self.hidden_states[:rows]


class Desc(NamedTuple):
    """See BatchExecutionDescriptor."""

    num_tokens: int


class Parts:
    """See UBatchRunner; which part of a step is which makes no difference here."""

    def __init__(self, runner: FakeRunner) -> None:
        self._runner = runner

    def prepare(self, batch: Batch, tables: list[Tensor]) -> tuple[object, ...]:
        return tuple(self._runner.model_state.prepare_attn(batch, tables, ubatch_idx=part) for part in range(2))

    def run(self, model: Model, inputs: dict[str, Tensor], prepared: tuple[object, ...]) -> Tensor:
        with override_forward_context(SimpleNamespace(attn_metadata=prepared[1])):
            hidden: Tensor = model(**inputs)
        return hidden


class FakeRunner:
    """See GPUModelRunner. graphs: decode steps run from graphs; parts: steps run in two microbatches."""

    def __init__(
        self, port: FakePort, *, slots: int, length: int, blocks: int, graphs: bool, parts: bool = False
    ) -> None:
        def numbers(*size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.int64)

        self.port = port
        self.cache = numbers(blocks * BLOCK)
        self.input_buffers = SimpleNamespace(
            input_ids=numbers(64), positions=numbers(64), query_start_loc=numbers(slots + 1), seq_lens=numbers(slots)
        )
        self.block_tables = SimpleNamespace(
            input_block_tables=[numbers(slots, length // BLOCK + 1)], slot_mappings=numbers(1, 64)
        )
        self.tables = numbers(slots, length // BLOCK + 1)
        self.builder = numbers(slots, length // BLOCK + 1)
        self.req_states = SimpleNamespace(
            req_id_to_index={}, free=list(range(slots)),
            num_computed_tokens=SimpleNamespace(gpu=numbers(slots)), total_len=SimpleNamespace(gpu=numbers(slots)),
            prefill_len=SimpleNamespace(gpu=numbers(slots)), next_prefill_tokens=numbers(1, slots),
            last_sampled_tokens=numbers(slots, 1), draft_tokens=numbers(slots, 0),
            all_token_ids=SimpleNamespace(gpu=numbers(slots, length)),
        )  # fmt: skip
        self.sampler = SimpleNamespace(
            penalties_state=SimpleNamespace(
                use_penalty=np.zeros(slots, dtype=bool), output_bin_counts=numbers(slots, WORDS)
            )
        )
        self.prompt_logprobs_worker = None
        self.main_stream = None
        self.vllm_config = None
        self.model_state = SimpleNamespace(prepare_attn=self._prepare_attn, num_new_sampled_tokens_per_step=1)
        self.model = Model(self)
        self.ubatch_runner = Parts(self) if parts else None
        self.execute_model_state: State | None = None
        self.cudagraph_manager = Manager(self, tuple(range(1, slots + 1))) if graphs else None
        self.captures = 0
        if graphs:
            self.capture_model()

    def capture_model(self) -> int:
        """Overwrites the inputs, as capturing does."""
        manager = self.cudagraph_manager
        assert manager is not None
        for value in vars(self.input_buffers).values():
            value.fill_(1)
        self.block_tables.input_block_tables[0].zero_()
        self.block_tables.slot_mappings.fill_(-1)
        self.builder.zero_()
        (sizes,) = manager._capture_descs.values()
        for size in sizes:
            desc = size if isinstance(size, Desc) else Desc(size)
            assert desc not in manager.graphs
            if self.port.lost():
                raise PeerLost("it is gone")
            manager.graphs[desc] = self.port.generation
            self.captures += 1
        return 0

    def execute_model(self, scheduled: SimpleNamespace) -> State | dict[str, list[int]] | None:
        states = self.req_states
        for name in sorted(scheduled.finished_req_ids | scheduled.preempted_req_ids):
            if name in states.req_id_to_index:
                states.free.append(states.req_id_to_index.pop(name))
        for new in scheduled.new:
            slot = states.req_id_to_index[new.name] = states.free.pop()
            states.all_token_ids.gpu[slot, : len(new.tokens)] = torch.tensor(new.tokens)
            states.prefill_len.gpu[slot] = states.total_len.gpu[slot] = len(new.tokens)
            states.num_computed_tokens.gpu[slot] = 0
            self.sampler.penalties_state.use_penalty[slot] = new.penalty
            output = torch.tensor(new.tokens[new.prompt_len :], dtype=torch.int64)
            self.sampler.penalties_state.output_bin_counts[slot] = torch.bincount(output, minlength=WORDS)
        for name, blocks in scheduled.blocks.items():
            self.tables[states.req_id_to_index[name], : len(blocks)] = torch.tensor(blocks)
        if not scheduled.counts:
            return {}
        batch = self._prepare_inputs(scheduled.counts)
        rows, buffers = batch.tokens, self.input_buffers
        tables, parts = self.block_tables.input_block_tables, self.ubatch_runner
        metadata = (self.model_state.prepare_attn if parts is None else parts.prepare)(batch, tables)
        inputs = {"input_ids": buffers.input_ids[:rows], "positions": buffers.positions[:rows]}
        if self.cudagraph_manager is not None and rows == len(batch.req_ids):
            hidden = self.cudagraph_manager.run_fullgraph(Desc(rows))
        elif parts is not None:
            hidden = parts.run(self.model, inputs, metadata)
        else:
            with override_forward_context(SimpleNamespace(attn_metadata=metadata)):
                hidden = self.model(**inputs)
        self.execute_model_state = State(batch, hidden)
        return None

    def sample_tokens(self, _grammar: object) -> Output:
        assert self.execute_model_state is not None
        batch, hidden = self.execute_model_state
        self.execute_model_state = None
        assert hidden is not None
        slots = batch.idx_mapping
        penalties = self.sampler.penalties_state
        counted = torch.from_numpy(penalties.use_penalty[batch.idx_mapping_np]).long()
        seen = penalties.output_bin_counts[slots] * torch.arange(1, WORDS + 1)
        tokens = ((hidden[batch.logits_indices] + counted * seen.sum(1)) % WORDS)[:, None]
        done = batch.seq_lens[: len(slots)] >= self.req_states.prefill_len.gpu[slots]
        output = Output(batch.req_ids, tokens, done.long())
        self.postprocess_sampled(slots, tokens, done.long(), None, batch.query_start_loc)
        return output

    def postprocess_sampled(
        self, slots: Tensor, tokens: Tensor, counts: Tensor, _rejected: object, starts: Tensor
    ) -> None:
        states = self.req_states
        for row, slot in enumerate(slots.tolist()):
            if slot < 0:
                continue
            if counts[row]:
                states.last_sampled_tokens[slot] = tokens[row, 0]
                states.all_token_ids.gpu[slot, states.total_len.gpu[slot]] = tokens[row, 0]
                states.total_len.gpu[slot] += 1
                self.sampler.penalties_state.output_bin_counts[slot, tokens[row, 0]] += 1
            states.num_computed_tokens.gpu[slot] += starts[row + 1] - starts[row]

    def _prepare_inputs(self, counts: dict[str, int]) -> Batch:
        states, buffers = self.req_states, self.input_buffers
        names = sorted(counts, key=lambda name: (counts[name], name))
        slots = np.array([states.req_id_to_index[name] for name in names])
        total, row = sum(counts.values()), 0
        buffers.query_start_loc.fill_(total)
        for place, (name, slot) in enumerate(zip(names, slots.tolist(), strict=True)):
            begin = int(states.num_computed_tokens.gpu[slot])
            buffers.query_start_loc[place] = row
            buffers.seq_lens[place] = begin + counts[name]
            known = states.all_token_ids.gpu[slot, begin : begin + counts[name]]
            if begin < states.prefill_len.gpu[slot]:
                buffers.input_ids[row : row + counts[name]] = known
            for at in range(begin, begin + counts[name]):
                buffers.positions[row] = at
                block = self.tables[slot, at // BLOCK]
                self.block_tables.slot_mappings[0, row] = block * BLOCK + at % BLOCK
                row += 1
        self.block_tables.slot_mappings[0, row:] = -1
        self.block_tables.input_block_tables[0][: len(names)] = self.tables[slots]
        mapping, many = torch.from_numpy(slots), torch.arange(len(names) + 1)
        starts = buffers.query_start_loc[: len(names) + 1]
        indices = combine(
            buffers.input_ids, mapping, states.last_sampled_tokens, starts, buffers.seq_lens,
            states.prefill_len.gpu, states.draft_tokens, many, len(names), 1,
        )  # fmt: skip
        return Batch(names, mapping, slots, starts, buffers.seq_lens, many, indices, total)

    def _prepare_attn(self, batch: Batch, tables: list[Tensor], ubatch_idx: int = 0) -> Tensor:
        """Into memory of its own, from which graphs read."""
        self.builder[: len(batch.req_ids)] = tables[0][: len(batch.req_ids)]
        return self.builder[: len(batch.req_ids)]


def combine(
    input_ids: Tensor, slots: Tensor, last: Tensor, starts: Tensor, lens: Tensor, prefill: Tensor,
    _drafts: Tensor, _cu: Tensor, _logits: int, _new: int,
) -> Tensor:  # fmt: skip
    """See combine_sampled_and_draft_tokens."""
    for row, slot in enumerate(slots.tolist()):
        if lens[row] > prefill[slot]:
            input_ids[starts[row + 1] - 1] = last[slot, 0]
    return (starts[1 : len(slots) + 1] - 1).clone()
