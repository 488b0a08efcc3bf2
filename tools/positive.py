"""Numbers on the command lines of the tools, so that a slip is a usage error before anything starts."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """An argparse type: at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, found {text}")
    return value
