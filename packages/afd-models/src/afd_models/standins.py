"""Parameter-free modules that take the place of what a role does not build."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from vllm.model_executor.models.utils import PPMissingLayer

from afd_models.kept import kept

if TYPE_CHECKING:
    from afd_models.exchange import Exchange
    from afd_models.keep import Keep


class StandIn(PPMissingLayer):
    """Base of all stand-ins: no parameters, skipped by both of vLLM's weight-loader paths.

    ``path`` is the module's dotted name in the model, taken from the native constructor's ``prefix``.
    """

    #: vLLM asks embeddings and linear layers for it before it looks at their weights.
    quant_method = None

    def __new__(cls, *_args: object, **_kwargs: object) -> StandIn:
        # Native classes may choose another class in __new__ (custom-op registries): a stand-in never does.
        made: StandIn = nn.Module.__new__(cls)
        return made

    def __init__(self, *_args: object, prefix: str = "", **_kwargs: object) -> None:
        nn.Module.__init__(self)
        self.path = prefix


class Absent(StandIn):
    """Takes the place of a module that this role neither holds nor calls."""

    def forward(self, *_args: object, **_kwargs: object) -> torch.Tensor:
        raise RuntimeError(
            f"Expected no call of {self.path or type(self).__name__} on this role, found one: the module belongs to "
            "the other role, so the family's declaration in afd_models/families misses a name."
        )

    def tie_weights(self, _embeddings: nn.Module) -> Absent:
        """What a model with tied embeddings calls on its LM head."""
        return self


class Remote(StandIn):
    """Takes the place of an FFN stage that the other role computes; ``layer`` is the decoder layer's index."""

    exchange: Exchange

    def __init__(self, *_args: object, prefix: str = "", **_kwargs: object) -> None:
        super().__init__(prefix=prefix)
        self.layer = layer_index(prefix)


class RemoteFFNProxy(Remote):
    """Stands for a whole dense FFN: ``forward(hidden)`` is replayed on the native module on the FFN rank."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """hidden_states: [rows, hidden]; returns the FFN's output in the same shape and dtype."""
        return self.exchange(hidden_states, self.layer)


class RemoteBlock(Remote):
    """Stands for a sparse FFN that calls its gate itself: ``forward(hidden)`` is replayed on the native block.

    Built by the native constructor, since causal-LM classes read counts and ``experts`` off their blocks; what that
    made is dropped again, so that this role holds no gate.
    """

    def __init__(self, *args: object, prefix: str = "", **kwargs: object) -> None:
        super(nn.Identity, self).__init__(*args, prefix=prefix, **kwargs)  # type: ignore[misc]
        self.path, self.layer = prefix, layer_index(prefix)
        self._parameters.clear()
        for name, child in list(self.named_children()):
            if not isinstance(child, StandIn):
                setattr(self, name, Absent(prefix=f"{prefix}.{name}"))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """hidden_states: [rows, hidden]; returns the block's output in the same shape and dtype."""
        return self.exchange(hidden_states, self.layer)


class RemoteExperts(Remote):
    """Stands for the experts below a native sparse block, which keeps calling them as it calls its own."""

    keep: Keep

    def __init__(self, *_args: object, prefix: str = "", **arguments: object) -> None:
        super().__init__(prefix=prefix)
        # Not a submodule: the block holds the gate already, and the stand-in has no parameters.
        self.exchange.keep(self.layer, kept(self.keep, prefix, arguments))

    def forward(self, hidden_states: torch.Tensor, router_logits: torch.Tensor) -> torch.Tensor:
        """hidden_states: [rows, hidden], handed in as router logits too: whoever has the gate calls it."""
        if router_logits is not hidden_states:
            raise RuntimeError(
                f"Expected {self.path} to be called with its hidden states as router logits (vLLM's experts call the "
                "gate), found other logits: this model's block calls its gate itself, which is not supported."
            )
        return self.exchange(hidden_states, self.layer)


def layer_index(path: str) -> int:
    """Decoder layer index in a dotted module path, e.g. 3 in ``model.layers.3.mlp``."""
    numbers = [int(part) for part in path.split(".") if part.isdigit()]
    if len(numbers) != 1:
        raise ValueError(f"Expected one layer number in a module path such as model.layers.3.mlp, found {path!r}.")
    return numbers[0]


def standing_for(kind: type[StandIn], native: object, **attributes: object) -> type[StandIn]:
    """A class of ``kind`` that also derives from ``native`` if that is a class: vLLM's isinstance checks hold."""
    bases = (kind, native) if isinstance(native, type) else (kind,)
    name = getattr(native, "__name__", "Module")
    return type(name, bases, {"__module__": __name__, **attributes})
