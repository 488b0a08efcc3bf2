"""Which device each server of this host gets: two roles on one would share memory that each of them counts on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
#: Where the driver shows the devices that this host, or this container, has.
NODES = Path("/dev")


def deal(servers: int, env: Mapping[str, str], nodes: Path = NODES) -> tuple[str, ...]:
    """A value of CUDA_VISIBLE_DEVICES for each server: one device each, of those that `env` names or the host has.

    ValueError when there are fewer. Where nothing shows how many there are, CUDA itself will say.
    """
    named = env.get(VISIBLE)
    if named is not None:
        found, where = tuple(each.strip() for each in named.split(",") if each.strip()), f"in {VISIBLE}={named}"
    else:
        count = sum(node.name.removeprefix("nvidia").isdigit() for node in nodes.glob("nvidia*"))
        found, where = tuple(map(str, range(count or servers))), "on this host"
    if len(found) < servers:
        raise ValueError(
            f"Expected a device for each of {servers} servers, found {len(found)} {where}: "
            "choose a smaller --topology, or start the roles on several hosts by hand."
        )
    return found[:servers]
