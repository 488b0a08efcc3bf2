"""The attention role's end of an exchange: a custom op that sends a layer's rows away and waits for the reply."""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from afd_connectors.step import Mode, Step

if TYPE_CHECKING:
    from afd_connectors.ports import AttentionPort

_LIBRARY = torch.library.Library("afd", "FRAGMENT")
_LIBRARY.define("exchange(Tensor hidden, Tensor(a!) out, int layer, int handle) -> ()")

#: Operators carry numbers only; this finds the exchange that a number means.
_EXCHANGES: weakref.WeakValueDictionary[int, Exchange] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class Figures:
    """What went through an exchange since it was made; ``seconds`` is the time spent in it, FFN compute included."""

    steps: int
    exchanges: int
    seconds: float


class Exchange:
    """Sends and receives through one port; one forward of the model is one step.

    Made before the model (its stand-ins hold it), connected after it: ``connect`` names the first layer that
    exchanges, at which each step is announced on the control plane with its row count.
    """

    def __init__(self) -> None:
        self._handle = max(_EXCHANGES, default=0) + 1
        self._port: AttentionPort | None = None
        self._first_layer = 0
        self._step = Step(seq=0, mode=Mode.EAGER, tokens=(0,))
        self._count, self._seconds = 0, 0.0
        _EXCHANGES[self._handle] = self

    def connect(self, port: AttentionPort, first_layer: int) -> None:
        """From now on exchanges go through ``port``; a step starts at decoder layer ``first_layer``."""
        self._port, self._first_layer = port, first_layer

    def __call__(self, hidden: torch.Tensor, layer: int) -> torch.Tensor:
        """hidden: [rows, hidden]; returns what the FFN role made of it in decoder layer ``layer``, alike in shape."""
        rows = hidden.contiguous()
        out = torch.empty_like(rows)
        torch.ops.afd.exchange(rows, out, layer, self._handle)
        return out

    def run(self, hidden: torch.Tensor, out: torch.Tensor, layer: int) -> None:
        """The op's body; ``out`` is filled in place. ConnectorError when the FFN role cannot answer."""
        if self._port is None:
            raise RuntimeError(
                "Expected the attention role to be connected before the model runs, found no open port: "
                "serve the model through an AFD attention worker, which opens it after loading."
            )
        started = time.perf_counter()
        if layer == self._first_layer:
            self._step = Step(seq=self._step.seq + 1, mode=Mode.EAGER, tokens=(hidden.shape[0],))
            self._port.begin(self._step)
        self._port.send(self._step, layer, hidden)
        self._port.recv(self._step, layer, out)
        self._count += 1
        self._seconds += time.perf_counter() - started

    @property
    def figures(self) -> Figures:
        """Steps, exchanges and seconds so far."""
        return Figures(self._step.seq, self._count, self._seconds)


def _run(hidden: torch.Tensor, out: torch.Tensor, layer: int, handle: int) -> None:
    _EXCHANGES[handle].run(hidden, out, layer)


def _fake(_hidden: torch.Tensor, _out: torch.Tensor, _layer: int, _handle: int) -> None:
    """Tracing needs no body: the op only fills ``out``."""


_LIBRARY.impl("exchange", _run, "CompositeExplicitAutograd")
_LIBRARY.impl("exchange", _fake, "Meta")
