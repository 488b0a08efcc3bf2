"""A transport for devices that have none of their own: rows are staged in host memory and carried by tcp."""

from dataclasses import dataclass
from operator import attrgetter

from torch import Tensor, empty_like, get_default_device

from afd_connectors import AttentionPort, FFNPort, Step, Work, resolve


class Staged(resolve("tcp", "cpu")):
    """Has tcp's features, reach and options; an FFN rank gets its rows on torch's default device."""

    name, devices = "staged", frozenset({"cpu", "cuda", "xpu"})

    def make_attention_port(self) -> AttentionPort:
        return StagedAttention(super().make_attention_port())

    def make_ffn_port(self) -> FFNPort:
        return StagedFFN(super().make_ffn_port())


@dataclass
class StagedAttention(AttentionPort):
    """The attention end; what is not said here tcp does."""

    tcp: AttentionPort
    begin, peers, close = (property(attrgetter(f"tcp.{name}")) for name in ("begin", "peers", "close"))

    def send(self, step: Step, layer: int, hidden: Tensor, router: Tensor | None = None, *, stage: int = 0) -> None:
        self.tcp.send(step, layer, hidden.cpu(), None if router is None else router.cpu(), stage=stage)

    def recv(self, step: Step, layer: int, out: Tensor, *, stage: int = 0) -> None:
        staged = empty_like(out, device="cpu")
        self.tcp.recv(step, layer, staged, stage=stage)
        out.copy_(staged)


@dataclass
class StagedFFN(FFNPort):
    """The FFN end."""

    tcp: FFNPort
    peers, close = (property(attrgetter(f"tcp.{name}")) for name in ("peers", "close"))

    def recv(self, stage: int | None = None, *, wait_s: float) -> Work | None:
        work, device = self.tcp.recv(stage, wait_s=wait_s), get_default_device()
        if work is None:
            return None
        router = None if work.router is None else work.router.to(device)
        return work._replace(hidden=work.hidden.to(device), router=router)

    def send(self, work: Work, out: Tensor) -> None:
        self.tcp.send(work, out.cpu())
