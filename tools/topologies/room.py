"""How many processes a run of topologies starts at once, and what is more than a host's processors make sense of."""

from __future__ import annotations

from collections.abc import Sequence

from tools.gpu.serve_parts import Part

#: Each has one thread that computes, and the start of each takes a processor half a minute.
PER_PROCESSOR = 8


def processes(part: Part, standby: bool) -> int:
    """Those that compute: of both roles, and of the server that stands by."""
    return part.deployment.devices + (part.deployment.ep if standby else 0)


def check(parts: Sequence[Part], processors: int, *, standby: bool, at_once: bool) -> None:
    """ValueError where a run on a CPU would start more at once than it could ever get anywhere with.

    at_once: the servers of all parts live together, and native vLLM's with them.
    """
    most = PER_PROCESSOR * processors
    for part in parts:
        _check(f"in {part.deployment}", processes(part, standby), most, processors, "name a smaller topology")
    if at_once:
        native = sum({part.deployment.tp for part in parts})
        found = native + sum(processes(part, standby) for part in parts)
        _check("in all parts at once", found, most, processors, "name fewer parts or leave --at-once out")


def _check(where: str, found: int, most: int, processors: int, instead: str) -> None:
    if found > most:
        raise ValueError(
            f"expected at most {most} processes, {PER_PROCESSOR} for each of {processors} processors, found {found} "
            f"{where}: {instead}"
        )
