"""Reads and changes what a server of a benchmark is given under "afd"."""

from __future__ import annotations

import json
from dataclasses import replace

from tools.gpu.serve_parts import Spec

_OPTION = "--additional-config"
LOOPBACK = "127.0.0.1"


def read(spec: Spec) -> dict[str, object]:
    """Its section."""
    section: dict[str, object] = json.loads(spec.arguments[_place(spec)])["afd"]
    return section


def port(spec: Spec) -> int:
    """Where an FFN server listens for attention."""
    section = read(spec)
    return int(str(section["port"])) + int(str(section["rank"]))


def changed(spec: Spec, **section: object) -> Spec:
    """With other values in its section."""
    place = _place(spec)
    text = json.dumps({"afd": {**read(spec), **section}})
    return replace(spec, arguments=(*spec.arguments[:place], text, *spec.arguments[place + 1 :]))


def standing_by(spec: Spec, free: int) -> Spec:
    """An FFN server that serves the same rank on port `free`."""
    rank = int(str(read(spec)["rank"]))
    return replace(changed(spec, port=free - rank), name=f"{spec.name}-standby")


def with_standby(spec: Spec, free: int) -> Spec:
    """An attention server that turns to port `free` when it loses an FFN rank."""
    return changed(spec, connector_extra_config={"standby_addresses": [f"{LOOPBACK}:{free}"]})


def _place(spec: Spec) -> int:
    return spec.arguments.index(_OPTION) + 1
