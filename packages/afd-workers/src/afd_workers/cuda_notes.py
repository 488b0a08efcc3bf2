"""Notes what a step of vLLM's second model runner does while it is dispatched, so that it can be done again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from vllm.forward_context import get_forward_context, override_forward_context

if TYPE_CHECKING:
    from torch import Tensor, nn
    from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    from afd_connectors.stepped import DeviceAttentionPort
    from afd_workers.cuda_flight import Flight
    from afd_workers.cuda_recapture import Graphs
    from afd_workers.cuda_shadow import Shadows


class Notes:
    """Hooks itself into one runner's instances when it is made: its attention, its model, its graphs."""

    def __init__(self, runner: GPUModelRunner, port: DeviceAttentionPort, graphs: Graphs, shadows: Shadows) -> None:
        self._port, self._graphs, self._shadows = port, graphs, shadows
        self._now: Flight | None = None
        states, parts = runner.model_state, runner.ubatch_runner
        states.prepare_attn = self._noting(states.prepare_attn)
        runner.model.register_forward_pre_hook(self._model_runs, with_kwargs=True)
        if parts is not None:
            parts.prepare = self._noting(parts.prepare)
            parts.run = partial(self._parts_run, parts.run)
        if graphs.manager is not None:
            graphs.manager.run_fullgraph = partial(self._graph_runs, graphs.manager.run_fullgraph)

    @contextmanager
    def of(self, flight: Flight) -> Iterator[None]:
        """What is called meanwhile belongs to this step."""
        self._now = flight
        try:
            yield
        finally:
            self._now = None

    @contextmanager
    def _outside(self) -> Iterator[Flight | None]:
        """The step that is being dispatched; nothing that is called meanwhile is taken for a step's."""
        flight, self._now = self._now, None
        try:
            yield flight
        finally:
            self._now = flight

    def _noting(self, prepare: Callable[..., object]) -> Callable[..., object]:
        """`prepare` of a step is kept, to be called again; what it calls in turn is a part of it."""

        def noted(*args: object, **kwargs: object) -> object:
            with self._outside() as flight:
                if flight is not None:
                    flight.prepare = lambda: prepare(*args, **kwargs)
                return prepare(*args, **kwargs)

        return noted

    def _model_runs(self, model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """A step is about to run without a graph."""
        flight = self._now
        if flight is None or flight.launch is not None:
            return
        context = get_forward_context()

        def launch(metadata: object) -> Tensor:
            context.attn_metadata = metadata
            with override_forward_context(context):
                hidden: Tensor = model(*args, **kwargs)
            return hidden

        flight.launch = launch
        flight.shadow = self._shadows.take()

    def _parts_run(self, run: Callable[..., Tensor], model: nn.Module, inputs: object, parts: object) -> Tensor:
        """A step is about to run without a graph in two microbatches, on threads of their own."""
        with self._outside() as flight:
            if flight is not None:
                flight.launch = lambda prepared: run(model, inputs, prepared)
                flight.shadow = self._shadows.take()
            return run(model, inputs, parts)

    def _graph_runs(self, run: Callable[[BatchExecutionDescriptor], Tensor], desc: BatchExecutionDescriptor) -> Tensor:
        """A step is about to run from a graph."""
        with self._outside() as flight:
            if flight is not None:
                flight.launch = lambda _metadata: self._run(run, desc)
                flight.desc = desc
                flight.shadow = self._shadows.take()
            if self._graphs.ensure(desc) and flight is not None:
                assert flight.shadow is not None
                assert flight.prepare is not None
                flight.shadow.restore(first=True)
                flight.prepare()  # graphs read the metadata where making it puts it
            return self._run(run, desc)

    def _run(self, run: Callable[[BatchExecutionDescriptor], Tensor], desc: BatchExecutionDescriptor) -> Tensor:
        if self._port.lost():  # the step is void already, and a graph of lost connections need not run
            return self._graphs.output(desc)
        return run(desc)
