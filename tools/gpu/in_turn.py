"""The parts of a benchmark in turn, so that one that fails does not keep the next from running."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence

from tools.gpu.children import Failed


def in_turn(parts: Mapping[str, Callable[[], bool | None]], names: Sequence[str]) -> bool:
    """Runs the parts that are named; whether none failed or said that something was wrong."""
    right = True
    for name in names:
        print(f"--- {name}", flush=True)
        try:
            right = parts[name]() is not False and right
        except Failed as error:
            print(f"FAILED: {error}", flush=True)
            right = False
        except Exception:  # noqa: BLE001  # whatever it was, the next part may still tell something
            traceback.print_exc(limit=3)
            right = False
    return right
