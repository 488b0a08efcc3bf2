"""A deployment in one process: FFN ranks that serve on threads, attention ranks for the test to drive."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from types import TracebackType

import torch
from torch import Tensor

from afd_connectors.errors import ConnectorError, PeerLost
from afd_connectors.facts import Facts
from afd_connectors.layout import Layout, Role
from afd_connectors.ports import AttentionPort, Connector, FFNPort, Work
from afd_connectors.settings import Settings
from afd_connectors.shape import Shape
from afd_connectors.step import Mode, Step
from afd_connectors.stepped import DeviceAttentionPort
from afd_connectors.testing.device import CPU, own_stream, receive
from afd_connectors.testing.free import free_port

REPEATS = 8
Compute = Callable[[int, Work], Tensor | None]


def answer_of(hidden: Tensor, layer: int, stage: int, router: Tensor | None = None) -> Tensor:
    """What a Group's FFN ranks compute: exact in every dtype for small whole numbers."""
    out = hidden * 2 + (layer * 2 + stage)
    return out if router is None else out + router.sum(-1, keepdim=True).to(hidden.dtype)


class Group:
    """Builds ports of one layout with short limits; closes whatever is open at the end of its `with`."""

    def __init__(
        self,
        connector: type[Connector],
        shape: Shape,
        *,
        attention: int = 1,
        ffn: int = 1,
        extra: Mapping[str, object] | None = None,
        device: str = CPU,
    ) -> None:
        self.connector, self.shape, self.device = connector, shape, device
        self.counts = (attention, ffn)
        self.facts = Facts(
            afd_version="0.1.0",
            vllm_version="none",
            model_digest="suite",
            dtype=shape.dtype,
            hidden=shape.hidden,
            layers=shape.layers,
            router=shape.router,
            gate="ffn",
            stages=shape.stages,
            graph_sizes=(),
            num_attention=attention,
            num_ffn=ffn,
        )
        self.settings = Settings(
            port=free_port(ffn),
            timeout_s=5.0,
            recovery_timeout_s=10.0,
            join_timeout_s=10.0,
            extra=extra or {},
        )
        self.works: list[tuple[int, Work, int]] = []
        self.compute: Compute = lambda _rank, work: answer_of(work.hidden, work.layer, work.stage, work.router)
        self.died: list[BaseException] = []
        self._serving: dict[int, tuple[FFNPort, threading.Thread]] = {}
        self._opened: list[AttentionPort] = []
        self._stream = self.stream()

    def __enter__(self) -> Group:
        self._stream.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for port in self._opened:
            port.close()
        for rank in tuple(self._serving):
            self.stop_ffn(rank)
        self._stream.__exit__(kind, value, trace)
        if value is None and self.died:
            raise self.died[0]

    def stream(self) -> AbstractContextManager[object]:
        """A stream of its own for a thread that drives a port."""
        return own_stream(self.device)

    def limits(self, **seconds: float) -> None:
        """Other limits for the ports that are opened from now on: timeout_s, recovery_timeout_s,
        join_timeout_s.
        """
        self.settings = replace(self.settings, **seconds)  # type: ignore[arg-type]  # only the float fields are named

    def build(
        self, role: Role, rank: int = 0, *, facts: Facts | None = None, settings: Settings | None = None
    ) -> Connector:
        """The connector of one rank, not opened."""
        layout = Layout(role, rank, *self.counts)
        return self.connector(layout, self.shape, facts or self.facts, settings or self.settings)

    def start_ffn(self, *ranks: int) -> None:
        """Opens FFN ranks (all without arguments) and serves each on a thread with `compute`."""
        for rank in ranks or range(self.counts[1]):
            port = self.build("ffn", rank).open_ffn()
            thread = threading.Thread(target=self._serve, args=(rank, port), daemon=True)
            self._serving[rank] = (port, thread)
            thread.start()

    @contextmanager
    def manual_ffn(self, rank: int = 0) -> Iterator[FFNPort]:
        """An FFN rank that the test itself drives, with `take` and `send`; closed at the end."""
        port = self.build("ffn", rank).open_ffn()
        try:
            yield port
        finally:
            port.close()

    def take(self, port: FFNPort, stage: int | None = None) -> Work:
        """The next work of a port that the test drives."""
        work = port.recv(stage, wait_s=5.0)
        assert work is not None, f"no exchange of stage {stage} came within 5 s"
        return work

    def stop_ffn(self, rank: int = 0) -> None:
        """Closes an FFN rank as a process that ends does."""
        port, thread = self._serving.pop(rank)
        port.close()
        thread.join(10.0)
        assert not thread.is_alive(), f"FFN rank {rank} did not leave recv within 10 s of its close"

    def ffn_port(self, rank: int = 0) -> FFNPort:
        """The open port of an FFN rank."""
        return self._serving[rank][0]

    def open_attention(
        self, rank: int = 0, *, facts: Facts | None = None, settings: Settings | None = None
    ) -> AttentionPort:
        """Opens an attention rank, closed at the end."""
        port = self.build("attention", rank, facts=facts, settings=settings).open_attention()
        self._opened.append(port)
        return port

    def rows(self, count: int) -> Tensor:
        """[count, hidden] of small whole numbers, exact in every dtype."""
        whole = torch.randint(-8, 8, (count, self.shape.hidden))
        return whole.to(self.device, getattr(torch, self.shape.dtype))

    def exchange(self, port: AttentionPort, step: Step, layer: int, stage: int = 0) -> None:
        """One exchange whose answer is checked."""
        hidden = self.rows(step.tokens[stage])
        out = torch.full_like(hidden, 77)
        port.send(step, layer, hidden, stage=stage)
        receive(port, step, layer, out, stage)
        assert torch.equal(out, answer_of(hidden, layer, stage)), f"layer {layer} stage {stage} of {step}"

    def forward(self, port: AttentionPort, seq: int, *tokens: int) -> None:
        """A step over all layers and stages whose answers are checked."""
        step = Step(seq, Mode.EAGER, tokens)
        port.begin(step)
        for layer in range(self.shape.layers):
            for stage in range(len(tokens)):
                self.exchange(port, step, layer, stage)

    def repeated(self, port: AttentionPort, seq: int, *tokens: int) -> int:
        """`forward` of a port whose calls only enqueue, again with the next seq as long as it is void; its last seq."""
        assert isinstance(port, DeviceAttentionPort)
        for number in range(seq, seq + REPEATS):
            try:
                self.forward(port, number, *tokens)
            except PeerLost:
                port.rejoin()
            else:
                return number
        raise AssertionError(f"{REPEATS} steps after one another were void")

    def _serve(self, rank: int, port: FFNPort) -> None:
        with self.stream():
            self._answer_all(rank, port)

    def _answer_all(self, rank: int, port: FFNPort) -> None:
        try:
            while True:
                work = port.recv(wait_s=0.1)
                if work is None:
                    continue
                self.works.append((rank, work, work.hidden.shape[0]))
                out = self.compute(rank, work)
                if out is not None:
                    port.send(work, out)
        except ConnectorError:  # the port was closed by the test
            return
        except BaseException as error:  # noqa: BLE001 - shown to the test at the end of its `with`
            self.died.append(error)


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether `condition` becomes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return condition()
