"""The FFN role of a worker: loads the experts, keeps no KV cache and serves exchanges instead of requests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from afd_workers import links, logs
from afd_workers.ending import end_process
from afd_workers.fixed import FixedWeights
from afd_workers.loop import Exchanges, ServerLoop, Source

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.lora.request import LoRARequest
    from vllm.tasks import SupportedTask
    from vllm.v1.worker.gpu_worker import Worker as Native
    from vllm.v1.worker.worker_base import CompilationTimes

    from afd_compat.config import Config
    from afd_connectors.ports import Connector
    from afd_workers.rehearsal import Rehearsal
    from afd_workers.team import Alone, Kinds, Lead
else:
    Native = object

log = logging.getLogger("afd.workers")


class FFNRole(FixedWeights, Native):
    """Mixed into a platform's worker in front of vLLM's own class."""

    vllm_config: VllmConfig
    _loop: ServerLoop | None = None
    _kinds: Kinds | None = None

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """Loads the FFN part; nothing is served yet."""
        from afd_models.keep import Keep
        from afd_models.stages import Replay, find_stages
        from afd_models.wrappers import Part, selected

        logs.enable()
        self._description = links.described(self.vllm_config)
        keep = Keep.of(links.section(self.vllm_config))
        with selected(self.vllm_config.model_config, Part("ffn", keep=keep)) as spec:
            super().load_model(load_dummy_weights=load_dummy_weights)
        self._stages = find_stages(spec, self.get_model(), keep)
        self._replay = Replay(self.get_model(), self._stages, keep)

    def get_supported_tasks(self) -> tuple[SupportedTask, ...]:
        """None: the API server then offers /health and /metrics, and no generation route."""
        return ()

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """The last step of vLLM's start-up: from here on exchanges are served, by a thread of this worker."""
        from vllm.v1.worker.worker_base import CompilationTimes

        from afd_workers.team import form

        config = links.section(self.vllm_config)
        self._member = form(self.vllm_config.model_config, self._replay, config, end_process, self._kinds)
        self._loop = ServerLoop(self._source(config), end_process, self._computing)
        self._loop.start()
        return CompilationTimes(language_model=0.0, encoder=0.0)

    def add_lora(self, _lora_request: LoRARequest) -> bool:
        """True: adapters are attention's, and a server that is given the same options as that one loads them too."""
        return True

    def execute_dummy_batch(self) -> None:
        """Nothing to run: an FFN rank has no batch of its own."""

    def shutdown(self) -> None:
        """Stops serving, then whatever vLLM stops."""
        if self._loop is not None and not self._loop.stop():
            log.warning("AFD FFN server loop still computes; the process ends without it.")
        super().shutdown()

    def _source(self, config: Config) -> Source:
        """The port, or on the other processes of a tensor-parallel rank the one that has it."""
        from afd_workers.team import Follower

        member = self._member
        if isinstance(member, Follower):
            return member
        connector = self._connector(config)
        return Exchanges(
            connector.open_ffn(),
            lambda work: member(work.layer, work.hidden, work.router),
            member.idle,
            self._rehearsal(member),
        )

    def _rehearsal(self, member: Alone | Lead) -> Rehearsal | None:  # noqa: ARG002
        """What this rank does when a step was announced, None for nothing."""
        return None

    def _connector(self, config: Config) -> Connector:
        return links.make_connector(
            self.vllm_config, config, links.Placement(dp_rank=0), self._stages, self.device.type, self._description
        )

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """What the loop's thread enters once, and not once per exchange."""
        with self._forward_context(), self._member.leading():
            yield

    @contextmanager
    def _forward_context(self) -> Iterator[None]:
        """What vLLM's MoE layers need around them.

        Nothing in the forward context of a rank without attention and data parallelism depends on the rows.
        """
        import torch
        from vllm.forward_context import set_forward_context

        with torch.inference_mode(), set_forward_context(None, self.vllm_config, num_tokens=1):
            yield
