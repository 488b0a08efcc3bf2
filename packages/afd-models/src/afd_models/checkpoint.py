"""What a local checkpoint says it is, so that a family that is not carried is refused before vLLM looks at it."""

from __future__ import annotations

import json
from pathlib import Path

from afd_models.families import find


def refuse(model: str) -> None:
    """ValueError when ``model`` is a folder whose config.json names architectures and none of a declared family.

    Whatever else is wrong with the folder, or a name of something that is to be downloaded, is vLLM's to judge.
    """
    named = _architectures(Path(model).expanduser() / "config.json")
    if named:
        find(named)


def _architectures(config: Path) -> list[str]:
    try:
        stated = json.loads(config.read_text())["architectures"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return [arch for arch in stated if isinstance(arch, str)] if isinstance(stated, list) else []
