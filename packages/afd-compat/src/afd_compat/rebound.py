"""Binds other values to names that a native function looks up, only while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def rebound(owner: ModuleType | type, **values: object) -> Iterator[None]:
    """Bind each name in `owner` to its value inside the `with`; LookupError where a name is not defined there."""
    missing = sorted(values.keys() - vars(owner).keys())
    if missing:
        raise LookupError(f"Expected {owner.__name__} to define {', '.join(missing)}, found that it does not.")
    natives = {name: vars(owner)[name] for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, native in natives.items():
            setattr(owner, name, native)
