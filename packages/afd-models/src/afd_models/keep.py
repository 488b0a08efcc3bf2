"""What attention keeps of the layers' FFNs: one value that decides how both roles are built and what they exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from afd_compat.config import Config


@dataclass(frozen=True, slots=True)
class Keep:
    """Parts of FFNs that the attention role holds and computes; the FFN role does not hold them.

    gate: router logits are computed on attention and travel with the rows.
    """

    gate: bool = False

    @classmethod
    def of(cls, config: Config) -> Keep:
        """What the "afd" section asks for."""
        return cls(gate=config.compute_gate_on_attention)


#: The experts' gate and every FFN are the FFN role's.
NOTHING = Keep()
