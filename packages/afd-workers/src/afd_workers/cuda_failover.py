"""Runs the attention role's steps again when an FFN rank was lost in them, before any of their tokens is seen.

A step only enqueues work, and the next one is dispatched before its tokens are read. So each step keeps what the next
one overwrites, and whether it is void is asked where its tokens are read anyway, which costs no wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch
from vllm.v1.outputs import AsyncModelRunnerOutput

from afd_connectors.errors import PeerLost
from afd_workers import cuda_shadow
from afd_workers.cuda_flight import Flight, obstacle, obstacle_now
from afd_workers.cuda_notes import Notes
from afd_workers.cuda_redo import recombine, sampled_again, uncount

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    from afd_connectors.stepped import DeviceAttentionPort
    from afd_workers.cuda_flight import Output
    from afd_workers.cuda_recapture import Graphs

log = logging.getLogger("afd.workers")


@dataclass(slots=True)
class Figures:
    """losses, repeated: since the start, the latter steps. Seconds of the last loss: drain_s until the device let go;
    rejoin_s until the ranks were joined again, capture_s of capturing graphs again, total_s until the repeated steps
    were enqueued.
    """

    losses: int = 0
    repeated: int = 0
    drain_s: float = 0.0
    rejoin_s: float = 0.0
    capture_s: float = 0.0
    total_s: float = 0.0


class Failover:
    """Around a runner's dispatch, sampling and reading of a step; graphs: the runner's over the same port."""

    def __init__(self, runner: GPUModelRunner, port: DeviceAttentionPort, graphs: Graphs) -> None:
        self.figures = Figures()
        self._runner, self._port, self._graphs = runner, port, graphs
        self._shadows = cuda_shadow.of_runner(runner)
        self._notes = Notes(runner, port, graphs, self._shadows)
        self._obstacle = obstacle(runner)
        self._flights: list[Flight] = []
        self._waiting = False
        self._lock = threading.RLock()  # an executor may read outputs on another thread than it dispatches on

    def dispatch(self, scheduled: SchedulerOutput, native: Callable[[SchedulerOutput], Output | None]) -> Output | None:
        """One step's forward, enqueued by `native`."""
        with self._lock:
            # What such steps do to the blocks of others must not happen before those are known to be right.
            if scheduled.preempted_req_ids or scheduled.kv_cache_block_copies:
                self._settle()
            if self._port.lost():
                self._settle()
                self._waiting = True
                try:
                    self._graphs.drain()
                    self._graphs.mend()
                finally:
                    self._waiting = False
            flight = Flight()
            with self._notes.of(flight):
                output = native(scheduled)
            if flight.launch is not None and output is None:
                flight.state = self._runner.execute_model_state
                flight.check = self._port.witness()
                self._flights.append(flight)
            return output

    def sample(
        self, grammar: GrammarOutput | None, native: Callable[[GrammarOutput | None], Output | None]
    ) -> Output | None:
        """One step's sampling; its output is read only after the step has proved good."""
        with self._lock:
            flight = self._flights[-1] if self._flights else None
            output = native(grammar)
            if flight is None or flight.output is not None or output is None:
                return output
            flight.grammar, flight.output = grammar, output
            return Guarded(self, flight)

    def read(self, flight: Flight) -> ModelRunnerOutput:
        """The tokens of a step, which is run again as often as an FFN rank is lost in it."""
        while flight.result is None:
            output = flight.output
            assert output is not None
            result, failure = self._arrived(output)
            with self._lock:
                if flight.output is not output or flight.result is not None:
                    continue  # run again by somebody else
                try:
                    flight.check()
                except PeerLost as lost:
                    self._repeat(lost)
                    continue
                if failure is not None:
                    raise failure
                flight.result = result
                self._flights.remove(flight)
                if flight.shadow is not None:
                    self._shadows.give(flight.shadow)
        return flight.result

    def _arrived(self, output: Output) -> tuple[ModelRunnerOutput | None, Exception | None]:
        """What came, or why vLLM found fault with it, which means nothing where the step is void."""
        with self._port.awaiting():
            try:
                return (output.get_output() if isinstance(output, AsyncModelRunnerOutput) else output), None
            except Exception as error:  # noqa: BLE001  # raised again unless the step is void
                return None, error

    @property
    def underway(self) -> bool:
        """Whether a step is, which then waits for whatever FFN rank is lost."""
        return bool(self._flights) or self._waiting

    def told(self) -> dict[str, float]:
        """The figures as plain values."""
        return asdict(self.figures)

    def warmed_up(self) -> None:
        """The steps until now served nobody: vLLM reads none of them, and run again they would write into blocks that
        belong to requests by then.
        """
        with self._lock:
            for flight in self._flights:
                if flight.shadow is not None:
                    self._shadows.give(flight.shadow)
            self._flights.clear()

    def _settle(self) -> None:
        """Reads every step that is under way."""
        for flight in tuple(self._flights):
            self.read(flight)

    def _repeat(self, lost: PeerLost) -> None:
        """Runs every step that is under way again, in order."""
        why = self._obstacle or obstacle_now(self._runner, self._flights)
        if why is not None:
            raise PeerLost(f"{str(lost).rstrip('.')}; with {why} a step cannot be run again: restart this server.")
        log.warning("AFD runs %d steps again: %s", len(self._flights), lost)
        started = time.perf_counter()
        captured = self._graphs.seconds
        with torch.inference_mode(), torch.cuda.stream(self._runner.main_stream):
            self._graphs.drain()
            idle = time.perf_counter()
            for flight in reversed(self._flights):
                uncount(self._runner, flight)
            self._graphs.mend()
            reached = time.perf_counter()
            for place, flight in enumerate(self._flights):
                self._again(flight, first=place == 0)
        figures = self.figures
        figures.losses += 1
        figures.repeated += len(self._flights)
        figures.drain_s, figures.rejoin_s = idle - started, reached - idle
        figures.capture_s = self._graphs.seconds - captured
        figures.total_s = time.perf_counter() - started
        log.info("AFD ran %d steps again: %s", len(self._flights), self.told())

    def _again(self, flight: Flight, *, first: bool) -> None:
        runner = self._runner
        assert flight.shadow is not None
        assert flight.state is not None
        if flight.desc is not None:
            self._graphs.ensure(flight.desc)
        flight.shadow.restore(first=first)
        if not first:
            recombine(runner, flight)
            flight.shadow.save()  # what it held came from the void step before, and this one may be void again
        flight.state = runner.execute_model_state = flight.state._replace(hidden_states=flight.forward())
        flight.check = self._port.witness()
        if flight.output is not None:
            flight.output = sampled_again(runner, flight)


class Guarded(AsyncModelRunnerOutput):
    """An output of which nobody sees a token before the step has proved good."""

    def __init__(self, failover: Failover, flight: Flight) -> None:
        self._failover, self._flight = failover, flight

    def get_output(self) -> ModelRunnerOutput:
        """See AsyncModelRunnerOutput."""
        return self._failover.read(self._flight)
