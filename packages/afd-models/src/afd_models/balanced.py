"""The balanced routing strategy: every expert gets as many tokens as any other, whatever the gate says."""

from __future__ import annotations

import torch
from vllm.model_executor.layers.fused_moe.router.routing_simulator_router import RoutingSimulator, RoutingStrategy


class Balanced(RoutingStrategy):
    """Deals the choices of all tokens to the experts in turn: in a call their counts differ by at most one."""

    def route_tokens(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        top_k: int,
        indices_type: torch.dtype | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """router_logits: [rows, experts]; returns equal weights and experts, [rows, top_k] each."""
        (rows, device), experts = (hidden_states.shape[0], hidden_states.device), router_logits.shape[-1]
        turns = torch.arange(rows * top_k, device=device).view(rows, top_k)
        weights = torch.full((rows, top_k), 1.0 / top_k, dtype=torch.float32, device=device)
        return weights, (turns % experts).to(indices_type or torch.int32)  # what the CPU kernel takes


def offer(name: str) -> bool:
    """From now on vLLM's routing simulator knows the strategy by ``name``; whether it did not before."""
    if name in RoutingSimulator.get_available_strategies():
        return False
    RoutingSimulator.register_strategy(name, Balanced())
    return True
