"""Routing without the gate, for benchmarks only: off unless vLLM's own variable asks for it, and then loud."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from afd_workers import logs

#: vLLM's variable; its value names a strategy of vLLM's routing simulator.
VARIABLE = "VLLM_MOE_ROUTING_SIMULATION_STRATEGY"
#: The one that AFD adds; vLLM has random ones.
BALANCED = "balanced"

_SIMULATOR = "vllm.model_executor.layers.fused_moe.router.routing_simulator_router"

log = logging.getLogger("afd.workers")


def simulated() -> str:
    """The strategy that this process routes by; empty where the model's own gate decides."""
    return os.environ.get(VARIABLE, "")


def offer_if_asked() -> None:
    """Adds the balanced strategy to vLLM's simulator where the variable names it; imports nothing otherwise."""
    if simulated() != BALANCED:
        return
    from afd_models.balanced import offer

    logs.enable()
    if offer(BALANCED):  # vLLM loads plugins twice in some processes
        warn()


def written() -> tuple[str, ...]:
    """The names that the installed vLLM's text gives its simulator; empty where it does not show."""
    import ast

    from afd_compat.source import Tree

    text = Tree().read(_SIMULATOR) if simulated() else None
    for node in ast.walk(ast.parse(text or "")):
        if not isinstance(node, ast.AnnAssign) or ast.unparse(node.target) != "_routing_strategies":
            continue
        if isinstance(node.value, ast.Dict):
            keys = [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
            return tuple(key for key in keys if isinstance(key, str))
    return ()


def registered() -> tuple[str, ...]:
    """The names that vLLM's simulator has in this process, plugins' included; imported only where one is asked for."""
    if not simulated():
        return ()
    from vllm.model_executor.layers.fused_moe.router.routing_simulator_router import RoutingSimulator

    return tuple(RoutingSimulator.get_available_strategies())


def check(known: Sequence[str]) -> None:
    """ValueError where the variable names none of ``known`` (nothing is refused where these are not known)."""
    strategy, names = simulated(), sorted({*known, BALANCED})
    if strategy and known and strategy not in names:
        raise ValueError(
            f"Expected {VARIABLE} to name one of {', '.join(names)}, found {strategy!r}: choose one of these or unset "
            "it."
        )


def warn() -> None:
    """One line on every start with a simulated routing."""
    if strategy := simulated():
        log.warning(
            "%s=%s: experts are chosen without the model's gate, so that all tokens are meaningless; "
            "use it for benchmarks only.", VARIABLE, strategy,
        )  # fmt: skip


def refuse(what: str) -> None:
    """ValueError where ``what`` compares tokens and the routing is simulated."""
    if strategy := simulated():
        raise ValueError(
            f"Expected the model's own routing for {what}, found {VARIABLE}={strategy}: unset it, its tokens are "
            "meaningless."
        )


def engine_version(version: str) -> str:
    """What the handshake compares as vLLM's version: roles that route differently are not alike."""
    strategy = simulated()
    return f"{version} with simulated routing ({strategy})" if strategy else version
