"""Reads a file of JSON that a user named: whatever it is, it is read or refused at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

_MIB: Final = 1 << 20
#: What is read here is small; weights that someone names by mistake would fill the memory.
MOST_BYTES: Final = 64 * _MIB


def read(file: Path, expected: str, instead: str) -> object:
    """What the file holds; ValueError says what was expected, what is wrong with it and what to do instead."""
    try:
        if file.exists() and not file.is_file():  # a pipe or device may never end
            raise ValueError("not a regular file")
        if (size := file.stat().st_size) > MOST_BYTES:
            raise ValueError(f"{size:,} bytes, more than {MOST_BYTES // _MIB} MiB")
        found: object = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"Expected {expected} ({' '.join(str(error).split())}): {instead}.") from error
    return found
