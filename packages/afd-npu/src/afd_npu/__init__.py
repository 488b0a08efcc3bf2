"""The Ascend leaf: holds what only NPU roles need and says what of it is not there yet."""

from __future__ import annotations


def unavailable() -> str:
    """One sentence for whoever selects the NPU platform: what is missing and what to do instead."""
    return "the Ascend workers, patches and connectors are not part of this version, so run both roles on CPU."
