"""The two role workers on vLLM's CUDA platform with its second model runner; vLLM loads them by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from vllm.v1.worker.gpu_worker import Worker

from afd_connectors.stepped import DeviceAttentionPort, SteppedFFNPort
from afd_workers import links
from afd_workers.attention import AttentionRole
from afd_workers.cuda_attention import announce_replays
from afd_workers.cuda_failover import Failover
from afd_workers.cuda_ffn import StepSource, own_stream, warm_up
from afd_workers.cuda_recapture import Graphs
from afd_workers.cuda_team import DeviceFollower, DeviceLead, Together
from afd_workers.dbo_attention import Overlap, overlap_of
from afd_workers.ffn import FFNRole
from afd_workers.silent import Silent
from afd_workers.team import Follower

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.worker.worker_base import CompilationTimes

    from afd_compat.config import Config
    from afd_connectors.ports import AttentionPort, Connector
    from afd_connectors.shape import Shape
    from afd_models.shares import Rows
    from afd_workers.loop import Source


class AttentionWorker(AttentionRole, Worker):
    """Attention on CUDA, eagerly or from graphs of whole decode steps, in two microbatches where that pays.

    Steps in which an FFN rank was lost are run again.
    """

    _failover: Failover | None = None
    _overlap = Overlap()

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """See AttentionRole."""
        self._overlap = overlap_of(self.vllm_config, links.section(self.vllm_config))
        super().load_model(load_dummy_weights=load_dummy_weights)
        self._overlap.begin(self._exchange, self.device)

    def _open(self, connector: Connector, rows: Rows) -> AttentionPort:
        """See AttentionRole; the later ranks of a tensor-parallel group, whose outputs nobody reads, meet nobody."""
        return connector.open_attention() if rows.count(connector.shape.tokens) else Silent()

    def determine_available_memory(self) -> int:
        """Native; graphs that are captured to learn their size are those that will be captured to serve."""
        with self._overlap.building:
            found: int = super().determine_available_memory()
        return found

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Native, after which the graphs' manager is the one that serves."""
        with self._overlap.building:
            super().initialize_from_config(kv_cache_config)
        announce_replays(self.model_runner.cudagraph_manager, self._exchange, self._per_step)
        if isinstance(self._port, DeviceAttentionPort):
            config = links.section(self.vllm_config)
            graphs = Graphs(
                self.model_runner, self._port, torch.cuda.graph_pool_handle, config.timeout_s,
                config.recovery_timeout_s, together=self.vllm_config.parallel_config.tensor_parallel_size > 1,
            )  # fmt: skip
            self._failover = Failover(self.model_runner, self._port, graphs)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Native, after which steps are timed to see when overlap pays."""
        times = super().compile_or_warm_up_model()
        port = self._port
        awaiting = port.awaiting if isinstance(port, DeviceAttentionPort) else nullcontext
        self._overlap.captured(self.model_runner, awaiting, self._check)
        if self._failover is not None:
            self._failover.warmed_up()
        return times

    def execute_model(self, scheduler_output: SchedulerOutput) -> object:
        """Native; the step may be split, and what could be undone only later is waited for first, see Failover."""
        if self._failover is None:
            return self._step(scheduler_output)
        return self._failover.dispatch(scheduler_output, self._step)

    def _step(self, scheduler_output: SchedulerOutput) -> object:
        with self._overlap.step(scheduler_output):
            return super().execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: GrammarOutput | None) -> object:
        """Native; tokens of a step in which an FFN rank was lost never leave, see Failover."""
        native = super().sample_tokens
        return native(grammar_output) if self._failover is None else self._failover.sample(grammar_output, native)

    def _check(self) -> None:
        """Raises when what ran last is void."""
        if isinstance(self._port, DeviceAttentionPort):
            self._port.witness()()

    def _underway(self) -> bool:
        """See AttentionRole."""
        return super()._underway() if self._failover is None else self._failover.underway

    def failover_figures(self) -> dict[str, float]:
        """What `cuda_failover.Figures` holds; for vLLM's ``collective_rpc``."""
        return {} if self._failover is None else self._failover.told()


class FFNWorker(FFNRole, Worker):
    """FFN on CUDA."""

    _steps: StepSource | None = None
    _kinds = DeviceLead, DeviceFollower

    def ffn_figures(self) -> dict[str, float]:
        """How many steps ran eagerly, were captured, replayed and missing; for vLLM's ``collective_rpc``."""
        return {} if self._steps is None else self._steps.figures()

    def _source(self, config: Config) -> Source:
        """See FFNRole; the port listens once nothing is left that could change what graphs are captured with.

        All processes of this rank warm up together: what they compute adds their parts up.
        """
        connector = self._connector(config)
        shape = connector.shape
        rows, exchanged = shape.tokens * len(connector.layout.peers), [stage.layer for stage in self._stages]
        self.model_runner.jit_warmup_registry.warmup()
        with self._forward_context():
            like = torch.zeros((rows, shape.hidden), dtype=self.vllm_config.model_config.dtype, device=self.device)
            warm_up(self._replay, exchanged, like, self._routers(shape, rows))
        member = self._member
        if isinstance(member, Follower):
            return member
        port = connector.open_ffn()
        if not isinstance(port, SteppedFFNPort):
            port.close()
            raise ValueError(f"AFD on CUDA needs a connector that serves whole steps, found {connector.name!r}.")
        local = set(range(shape.layers)) - set(exchanged)
        recording = Together(member) if isinstance(member, DeviceLead) else None
        self._steps = StepSource(port, member, local, recording, member.idle)
        return self._steps

    def _routers(self, shape: Shape, rows: int) -> Mapping[int, Sequence[torch.Tensor]]:
        """For `warm_up`: a gate on attention answers in the model's dtype or in float32."""
        if not shape.router:
            return {}
        dtypes = dict.fromkeys((self.vllm_config.model_config.dtype, torch.float32))
        like = [torch.zeros((rows, shape.router), dtype=each, device=self.device) for each in dtypes]
        return {stage.layer: like for stage in self._stages if not stage.whole}

    @contextmanager
    def _forward_context(self) -> Iterator[None]:
        """See FFNRole."""
        with own_stream(self.device), super()._forward_context():
            yield
