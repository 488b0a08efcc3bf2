"""Device transports under the contract's suite without their devices: a double answers to the transport's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from afd_connectors import registry
from afd_connectors.ports import Connector


def finding(double: type[Connector]) -> Callable[[str], type[Connector]]:
    """In the place of `registry.find`."""
    native = registry.find
    return lambda name: double if name == double.name else native(name)


@contextmanager
def doubled(double: type[Connector]) -> Iterator[None]:
    """Within it the registry finds the double under the transport's name, as a suite does when its class is made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "find", finding(double))
        yield
