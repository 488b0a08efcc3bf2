"""Where the router logits of a stage's batch arrive on an FFN rank, beside its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from afd_connectors.checks import DTYPE_NAMES
from afd_connectors.shape import ROUTER_BYTES, Shape

if TYPE_CHECKING:
    from torch import Tensor


class Routers:
    """Room for ``rows`` rows of logits in each stage, none where no logits travel."""

    def __init__(self, shape: Shape, rows: int, device: str) -> None:
        self._width = shape.router
        count = rows * shape.router * ROUTER_BYTES
        self._rooms = [torch.empty(count, dtype=torch.uint8, device=device) for _ in range(shape.stages)]

    def room(self, stage: int, rows: int, code: int) -> Tensor | None:
        """[rows, router] in the dtype of ``code``; None for code 0."""
        if not code:
            return None
        dtype = getattr(torch, DTYPE_NAMES[code])
        return self._rooms[stage].view(dtype).view(-1, self._width)[:rows]
