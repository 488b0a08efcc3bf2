"""What every suite shares: toy checkpoints, hypothesis without deadlines, and what a machine may lack."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.support import netns
from tests.support.checkpoints import checkpoint

__all__ = ["checkpoint"]

settings.register_profile("afd", deadline=None)  # test machines stall
settings.load_profile("afd")
LACKING = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Declares the markers of machines' abilities."""
    config.addinivalue_line("markers", f"{netns.MARK}: makes a network namespace, which takes root and the command ip")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what this machine does not allow, and says so."""
    needing = [item for item in items if item.get_closest_marker(netns.MARK)]
    lacking = netns.lacking() if needing else None
    if lacking is not None:
        items[:] = [item for item in items if item not in needing]
        config.hook.pytest_deselected(items=needing)
        names = ", ".join(item.name for item in needing)
        config.stash[LACKING] = f"left out, as this machine allows no network namespace ({lacking}): {names}"


def pytest_report_collectionfinish(config: pytest.Config) -> str | list[str]:
    """Printed under the number of collected tests."""
    return config.stash.get(LACKING, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Printed at the end too, where it is read."""
    if LACKING in config.stash:
        terminalreporter.write_line(config.stash[LACKING], yellow=True)
