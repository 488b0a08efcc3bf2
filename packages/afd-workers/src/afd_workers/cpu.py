"""The two role workers on vLLM's CPU platform; vLLM loads them by name."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from vllm.v1.worker.cpu_worker import CPUWorker

from afd_models.keep import Keep
from afd_workers import links
from afd_workers.attention import AttentionRole
from afd_workers.ffn import FFNRole
from afd_workers.rehearsal import Rehearsal
from afd_workers.team import Alone

if TYPE_CHECKING:
    from torch import Tensor, nn

    from afd_workers.team import Lead


class AttentionWorker(AttentionRole, CPUWorker):
    """Attention on CPU. A step is announced when its forward begins, so that the FFN rank wakes up meanwhile."""

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """See AttentionRole."""
        super().load_model(load_dummy_weights=load_dummy_weights)
        model = self.get_model()
        model.register_forward_pre_hook(self._announce, with_kwargs=True)
        model.register_forward_hook(lambda *_: self._exchange.forget(), always_call=True)

    def _announce(self, _model: nn.Module, _given: tuple[object, ...], inputs: Mapping[str, Tensor | None]) -> None:
        positions = inputs.get("positions")
        if positions is not None:  # [rows], or [3, rows] where they have three dimensions
            self._exchange.expect(positions.shape[-1])


class FFNWorker(FFNRole, CPUWorker):
    """FFN on CPU."""

    def _rehearsal(self, member: Alone | Lead) -> Rehearsal | None:
        first = next((stage.layer for stage in self._stages if stage.sparse), None)
        if first is None or not isinstance(member, Alone) or Keep.of(links.section(self.vllm_config)).gate:
            return None
        model = self.vllm_config.model_config
        row = torch.zeros(1, model.get_hidden_size(), dtype=model.dtype)
        following = {stage.layer: after.layer for stage, after in pairwise(self._stages)}
        return Rehearsal(member, row, first, following)
