"""What the options of the tools take, so that a slip is a usage error before anything starts."""

from __future__ import annotations

import argparse
import json


def positive(text: str) -> int:
    """An argparse type: a whole number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, found {text[:80]}")
    return value


def json_object(text: str) -> dict[str, object]:
    """An argparse type: a JSON object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object such as {{}}, found {text[:80]!r}")
    return found
