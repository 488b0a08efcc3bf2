"""What a local checkpoint says it is, so that a family that is not carried is refused before vLLM looks at it."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

from afd_models.families import find


def check(model: str) -> None:
    """ValueError when ``model`` is a folder whose config.json is no JSON object, which vLLM says a minute later."""
    file = Path(model).expanduser() / "config.json"
    if not file.is_file():
        return
    try:
        stated = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        found = f"none ({' '.join(str(error).split())})"
    else:
        if isinstance(stated, dict):
            return
        found = f"a {type(stated).__name__}"
    raise ValueError(f"Expected a JSON object in {file}, found {found}: put the model's own config.json there.")


def refuse(model: str) -> None:
    """ValueError when ``model`` is a folder whose config.json names architectures and none of a declared family.

    ValueError too for a module that vLLM's file of that family imports and that is not installed here. Whatever else is
    wrong with the folder, or a name of something that is to be downloaded, is vLLM's to judge.
    """
    named = _architectures(model)
    if not named:
        return
    arch, spec = find(named)
    lacking = [name for name in spec.needs if find_spec(name) is None]
    if lacking:
        raise ValueError(
            f"Expected {' and '.join(lacking)} to be installed, which vLLM imports with {arch} ({spec.module}) for its "
            f"images, found none: install {' and '.join(lacking)}, as built for this torch."
        )


def _architectures(model: str) -> list[str]:
    try:
        stated = json.loads((Path(model).expanduser() / "config.json").read_text(encoding="utf-8"))["architectures"]
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):  # RuntimeError: a home that is not there, or depth
        return []
    return [arch for arch in stated if isinstance(arch, str)] if isinstance(stated, list) else []
