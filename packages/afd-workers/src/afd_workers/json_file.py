"""Reads a file of JSON that a user named: whatever it is, it is read or refused at once."""

from __future__ import annotations

import json
from pathlib import Path


def read(file: Path, expected: str, instead: str) -> object:
    """What the file holds; ValueError says what was expected, what is wrong with it and what to do instead."""
    try:
        if file.exists() and not file.is_file():  # a pipe or device may never end
            raise ValueError("not a regular file")
        found: object = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"Expected {expected} ({error}): {instead}.") from error
    return found
