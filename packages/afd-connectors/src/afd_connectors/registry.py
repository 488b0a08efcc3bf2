"""Finds a connector by name without importing any transport before it is chosen."""

from __future__ import annotations

import logging
import os
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec

from afd_connectors import nvml
from afd_connectors.address import one_host
from afd_connectors.ports import Connector
from afd_connectors.settings import Settings

log = logging.getLogger("afd.connectors")
GROUP = "afd.connectors"
BUILTIN = {
    "loopback": "afd_connectors.transports.loopback:Loopback",
    "nccl-p2p": "afd_connectors.transports.nccl.connector:NcclP2p",
    "nvlink": "afd_connectors.transports.nvlink.connector:Nvlink",
    "shm": "afd_connectors.transports.shm:Shm",
    "tcp": "afd_connectors.transports.tcp:Tcp",
}
AUTO = {"cpu": "tcp", "cuda": "nccl-p2p"}
AUTO_ONE_HOST = {"cpu": "shm", "cuda": "nvlink"}
PLANNED = {"npu": "camp2p"}


def names() -> tuple[str, ...]:
    """Every name that `resolve` knows, built in or registered by an installed package, sorted."""
    return tuple(sorted({*BUILTIN, *(entry.name for entry in entry_points(group=GROUP))}))


def resolve(name: str, device: str, settings: Settings | None = None) -> type[Connector]:
    """The connector class for `name` on a torch device type such as "cpu".

    "auto" picks by device and, where `settings` are given, memory that both roles reach if they must be on one host
    and can: both roles have the same settings and see the same host, so they pick the same. Raises ValueError for a
    name that is not known or a device that the connector does not carry.
    """
    if name == "auto":
        name = _automatic(device, settings)
    found = find(name)
    if device not in found.devices:
        carried = ", ".join(sorted(found.devices))
        raise ValueError(f"connector {name!r} carries tensors on {carried}, found device {device!r}; choose another.")
    return found


def _automatic(device: str, settings: Settings | None) -> str:
    if device in AUTO_ONE_HOST and settings is not None:
        obstacle = _obstacle(device, settings)
        if obstacle is None:
            return AUTO_ONE_HOST[device]
        log.info("connector 'auto' chooses %r and not %r: %s", AUTO[device], AUTO_ONE_HOST[device], obstacle)
    if device in AUTO:
        return AUTO[device]
    if device in PLANNED:
        raise ValueError(
            f"connector 'auto' on {device} would choose {PLANNED[device]!r}, which is not there yet; "
            f"known connectors are {', '.join(names())}."
        )
    raise ValueError(f"connector 'auto' knows no transport for device {device!r}; name one of {', '.join(names())}.")


def _obstacle(device: str, settings: Settings) -> str | None:
    """Why roles may not reach each other's memory of a device type, None when they can."""
    if not one_host(settings):
        return "its addresses are not all this host's own loopback"
    if device == "cuda":
        return nvml.obstacle() or _missing("cuda", "cuda.bindings")
    return None if hasattr(os, "memfd_create") else "this system has no anonymous memory"


def _missing(*modules: str) -> str | None:
    """Which of the modules, each a part of the one before, is not installed."""
    for name in modules:
        try:
            if find_spec(name) is not None:
                continue
        except (ImportError, ValueError):  # something else has the name of the part before
            pass
        return f"{name} is not installed"
    return None


def find(name: str) -> type[Connector]:
    """The connector class for a name, whatever devices it carries; ValueError for a name that is not known."""
    if name in BUILTIN:
        module, _, attribute = BUILTIN[name].partition(":")
        found: object = getattr(import_module(module), attribute)
    else:
        entries = entry_points(group=GROUP, name=name)
        if not entries:
            planned = " is not there yet" if name in PLANNED.values() else " is not known"
            raise ValueError(f"connector {name!r}{planned}; known connectors are {', '.join(names())}.")
        found = next(iter(entries)).load()
    if not (isinstance(found, type) and issubclass(found, Connector)):
        raise ValueError(f"entry point {name!r} of group {GROUP} must name a Connector class, found {found!r}.")
    return found
