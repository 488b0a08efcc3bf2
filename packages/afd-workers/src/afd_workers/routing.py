"""Routing without the gate, for benchmarks only: off unless vLLM's own variable asks for it, and then loud."""

from __future__ import annotations

import logging
import os

from afd_workers import logs

#: vLLM's variable; its value names a strategy of vLLM's routing simulator.
VARIABLE = "VLLM_MOE_ROUTING_SIMULATION_STRATEGY"
#: The one that AFD adds; vLLM has random ones.
BALANCED = "balanced"

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
