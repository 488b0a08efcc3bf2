"""What a local checkpoint says it is, so that a family that is not carried is refused before vLLM looks at it."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from afd_compat import json_file
from afd_models.families import find

_INSTEAD: Final = "put the model's own config.json there"


def check(model: str) -> None:
    """ValueError when ``model`` is a folder whose config.json is no JSON object, which vLLM says a minute later."""
    file = _config(model)
    if not os.path.exists(file):  # Path.exists raises for names that are too long
        return
    stated = json_file.read(file, f"a JSON object in {file}, found none", _INSTEAD)
    if not isinstance(stated, dict):
        raise ValueError(f"Expected a JSON object in {file}, found a {type(stated).__name__}: {_INSTEAD}.")


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
        stated = json_file.read(_config(model), "a model's config.json", _INSTEAD)
    except ValueError:
        return []
    named = stated.get("architectures") if isinstance(stated, dict) else None
    return [arch for arch in named if isinstance(arch, str)] if isinstance(named, list) else []


def _config(model: str) -> Path:
    return Path(os.path.expanduser(model), "config.json")  # Path.expanduser raises for a home that is not there
