"""Which vLLM is installed, without importing it or believing that its distribution is called `vllm`."""

from __future__ import annotations

import importlib.metadata

from packaging.version import InvalidVersion, Version

from afd_compat.source import Tree


def installed_version() -> str | None:
    """The version of the installed vLLM by the text of `vllm/_version.py` or else its distribution."""
    tree = Tree()
    if tree.read("vllm") is None:
        return None
    return tree.vllm_version() or _distribution_version()


def is_version(text: str) -> bool:
    """Whether `text` is a version that can be compared."""
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _distribution_version() -> str | None:
    """Slow (a third of a second), since every file list is read: only without a `_version.py`."""
    for name in importlib.metadata.packages_distributions().get("vllm", ()):
        return importlib.metadata.version(name)
    return None
