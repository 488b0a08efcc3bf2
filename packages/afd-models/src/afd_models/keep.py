"""What attention keeps of the layers' FFNs: one value that decides how both roles are built and what they exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from afd_compat.config import Config
    from afd_models.spec import MoE


@dataclass(frozen=True, slots=True)
class Keep:
    """Parts of FFNs that the attention role holds and computes; the FFN role does not hold them.

    gate: router logits are computed on attention and travel with the rows. shared: shared experts are computed on
    attention while the others are awaited. dense: layers whose whole FFN is dense are not exchanged.
    """

    gate: bool = False
    shared: bool = False
    dense: bool = False

    @classmethod
    def of(cls, config: Config) -> Keep:
        """What the "afd" section asks for."""
        return cls(
            gate=config.compute_gate_on_attention,
            shared=config.shared_experts_on_attention,
            dense=config.dense_layers_on_attention,
        )


def check_block(spec: MoE, keep: Keep) -> None:
    """ValueError for parts that attention cannot have where the whole block around the experts is remote."""
    asked = (("compute_gate_on_attention", keep.gate), ("shared_experts_on_attention", keep.shared))
    key = next((key for key, wanted in asked if wanted and spec.block), None)
    if key is not None:
        raise ValueError(
            f"{key} needs a model whose experts call their gate, found {spec.arch}, of which AFD exchanges whole "
            f"{spec.block} blocks: set it to false for this model."
        )


#: Every FFN is the FFN role's, with all its experts and their gate.
NOTHING = Keep()
