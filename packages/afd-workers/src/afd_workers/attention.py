"""The attention role of a worker: loads the cut model, then joins its FFN role before the engine becomes ready."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from afd_workers import links, logs
from afd_workers.fixed import FixedWeights, only_attention
from afd_workers.health.report import Report

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu_worker import Worker as Native

    from afd_connectors.ports import AttentionPort, Connector
    from afd_models.shares import Rows
else:
    Native = object


class AttentionRole(FixedWeights, Native):
    """Mixed into a platform's worker in front of vLLM's own class; everything else of that class stays native."""

    vllm_config: VllmConfig
    _port: AttentionPort | None = None
    _report: Report | None = None

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """Loads the attention part, then waits for the FFN role within join_timeout_s; ConnectorError after that."""
        from afd_models.exchange import Exchange
        from afd_models.keep import Keep
        from afd_models.stages import find_stages
        from afd_models.wrappers import Part, selected

        logs.enable()
        config = links.section(self.vllm_config)
        description = links.described(self.vllm_config)
        self._exchange = Exchange()
        keep = Keep.of(config)
        with selected(self.vllm_config.model_config, Part("attention", self._exchange, keep)) as spec:
            super().load_model(load_dummy_weights=load_dummy_weights)
        stages = find_stages(spec, self.get_model(), keep)
        if self.vllm_config.lora_config is not None:
            roots = (stage.path.removesuffix(f".{spec.inner}") for stage in stages)
            only_attention(self.model_runner.lora_manager, self.get_model(), roots)
        placement = links.placement(self.vllm_config.parallel_config)
        connector = links.make_connector(self.vllm_config, config, placement, stages, self.device.type, description)
        rows = links.rows(placement, connector.layout)
        self._port = self._open(connector, rows)
        self._exchange.connect(self._port, stages[0].layer, rows)
        self._per_step = len(stages)
        self._report = Report(connector.layout.rank, self._port, self._underway)

    def _open(self, connector: Connector, rows: Rows) -> AttentionPort:  # noqa: ARG002
        """The port of this rank, which exchanges `rows`."""
        return connector.open_attention()

    def exchange_figures(self) -> dict[str, float]:
        """What ``afd_models.exchange.Figures`` holds, as plain values for vLLM's ``collective_rpc``."""
        return asdict(self._exchange.figures)

    def _underway(self) -> bool:
        """Whether a step is between two exchanges or in one, which is where a lost FFN rank is waited for."""
        figures = self._exchange.figures
        return figures.steps * self._per_step > figures.exchanges

    def shutdown(self) -> None:
        """Closes the port, then whatever vLLM closes."""
        if self._report is not None:
            self._report.close()
        if self._port is not None:
            self._port.close()
        super().shutdown()
