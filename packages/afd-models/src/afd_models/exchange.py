"""The attention role's end of an exchange: a custom op that sends a layer's rows away and waits for the reply."""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from afd_connectors.step import Mode, Step
from afd_models.kept import NONE, Kept
from afd_models.microbatches import OneBatch
from afd_models.shares import AllRows

if TYPE_CHECKING:
    from afd_connectors.ports import AttentionPort
    from afd_models.microbatches import Microbatches
    from afd_models.shares import Rows

_LIBRARY = torch.library.Library("afd", "FRAGMENT")
_LIBRARY.define("exchange(Tensor hidden, Tensor(a!) out, int layer, int handle) -> ()")

#: Operators carry numbers only; this finds the exchange that a number means.
_EXCHANGES: weakref.WeakValueDictionary[int, Exchange] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class Figures:
    """What went through an exchange since it was made.

    exchanges: of a layer, counted once however many stages it had; seconds: spent in them, FFN compute included.
    """

    steps: int
    exchanges: int
    seconds: float


class Exchange:
    """Sends and receives through one port; one forward of the model is one step.

    Made before the model (its stand-ins hold it), connected after it: ``connect`` names the first layer that
    exchanges, at which each step is announced on the control plane with its row count, unless `expect` did so.
    """

    def __init__(self) -> None:
        self._handle = max(_EXCHANGES, default=0) + 1
        self._port: AttentionPort | None = None
        self._rows: Rows = AllRows()
        self._batches: Microbatches = OneBatch()
        self._kept: dict[int, Kept] = {}
        self._first_layer = 0
        self._step = Step(seq=0, mode=Mode.EAGER, tokens=(0,))
        self._expected = False
        self._count, self._seconds = 0, 0.0
        _EXCHANGES[self._handle] = self

    def connect(self, port: AttentionPort, first_layer: int, rows: Rows) -> None:
        """From now on exchanges go through ``port``; a step starts at decoder layer ``first_layer``.

        rows: which of a layer's rows this rank exchanges. Where it is none, the step is announced with none.
        """
        self._port, self._first_layer, self._rows = port, first_layer, rows

    def keep(self, layer: int, kept: Kept) -> None:
        """What this role computes itself of decoder layer ``layer``, in the op and so as vLLM's own experts do it."""
        self._kept[layer] = kept

    def split(self, batches: Microbatches) -> None:
        """From now on a step may come as several microbatches, each a stage of it."""
        self._batches = batches

    def __call__(self, hidden: torch.Tensor, layer: int) -> torch.Tensor:
        """hidden: [rows, hidden]; returns what the FFN role made of it in decoder layer ``layer``, alike in shape."""
        rows = hidden.contiguous()
        out = torch.empty_like(rows)
        if torch.compiler.is_compiling():
            torch.ops.afd.exchange(rows, out, layer, self._handle)
        else:  # only a trace needs an operator, and the dispatcher's way to a Python body is a long one
            self.run(rows, out, layer)
        return out

    def run(self, hidden: torch.Tensor, out: torch.Tensor, layer: int) -> None:
        """The op's body; ``out`` is filled in place. ConnectorError when the FFN role cannot answer."""
        if self._port is None:
            raise RuntimeError(
                "Expected the attention role to be connected before the model runs, found no open port: "
                "serve the model through an AFD attention worker, which opens it after loading."
            )
        started = time.perf_counter()
        batches, stage = self._batches, self._batches.stage()
        own = self._rows.own(hidden)
        count = own.shape[0]
        if layer == self._first_layer and stage == 0:
            tokens, mode = batches.tokens(count), Mode.CAPTURE if _capturing(hidden) else Mode.EAGER
            if not self._expected or (mode, tokens) != (self._step.mode, self._step.tokens):
                self._begin(mode, tokens)
            self._expected = False
        kept = self._kept.get(layer, NONE)
        if count:
            logits = None if kept.gate is None else self._rows.own(kept.gate(hidden)[0])
            with batches.sending(stage):
                self._port.send(self._step, layer, own, logits, stage=stage)
        # Here and not before, so that the FFN role has the rows meanwhile.
        shared = None if kept.shared is None else kept.shared(hidden)
        batches.give_way(out)
        if count:
            with batches.receiving(stage):
                self._port.recv(self._step, layer, self._rows.own(out), stage=stage)
        self._rows.complete(out)
        if shared is not None:
            torch.add(shared, out, out=out)  # as vLLM adds them
        self._count += stage == len(self._step.tokens) - 1
        self._seconds += time.perf_counter() - started

    def expect(self, rows: int) -> None:
        """Announces the step of a forward of ``rows`` rows that is about to begin on this thread, eager and unsplit.

        The FFN role is then awake and has taken the announcement in when the first rows come. A forward that turns out
        to have others is announced again; when it ends, exchanges or none, call `forget`.
        """
        if self._port is not None:
            self._begin(Mode.EAGER, (self._rows.count(rows),))
            self._expected = True

    def forget(self) -> None:
        """The forward that `expect` announced is over: one that nobody announced does not pass for it."""
        self._expected = False

    def replay(self, tokens: tuple[int, ...], exchanges: int) -> None:
        """Announces a step that a graph is about to run with all its ``exchanges``; tokens: padded rows per stage, of
        which this rank exchanges its part.

        A replay runs none of this module's code, so whoever starts it says so here.
        """
        self._begin(Mode.REPLAY, tuple(map(self._rows.count, tokens)))
        self._count += exchanges

    def _begin(self, mode: Mode, tokens: tuple[int, ...]) -> None:
        assert self._port is not None  # see run; graphs are captured by running
        self._step = Step(seq=self._step.seq + 1, mode=mode, tokens=tokens)
        self._port.begin(self._step)

    @property
    def figures(self) -> Figures:
        """Steps, exchanges and seconds so far."""
        return Figures(self._step.seq, self._count, self._seconds)


def _capturing(hidden: torch.Tensor) -> bool:
    """Whether a graph is being recorded on this thread, so that nothing that is enqueued now moves rows."""
    return hidden.is_cuda and torch.cuda.is_current_stream_capturing()


def _run(hidden: torch.Tensor, out: torch.Tensor, layer: int, handle: int) -> None:
    _EXCHANGES[handle].run(hidden, out, layer)


def _fake(_hidden: torch.Tensor, _out: torch.Tensor, _layer: int, _handle: int) -> None:
    """Tracing needs no body: the op only fills ``out``."""


_LIBRARY.impl("exchange", _run, "CompositeExplicitAutograd")
_LIBRARY.impl("exchange", _fake, "Meta")
