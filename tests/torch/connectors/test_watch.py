"""An FFN rank's look at its peers: none is left waiting because another one is fast."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from afd_connectors.transports.paired.guests import Guests
from afd_connectors.transports.paired.peer import Peer
from afd_connectors.transports.paired.watch import Watch


class Fake:
    """A peer in memory; busy: a request is there whenever it is asked. blocked: one waits for its announcement."""

    dropped = answering = unnoted = False
    interest = staticmethod(lambda: 1)
    polled = 1

    def __init__(self, *, busy: bool) -> None:
        self.arrived, self.blocked, self.advanced = busy, not busy, 0

    def advance(self) -> None:
        self.advanced += 1

    def doze(self, _asleep: bool) -> None:
        return


@pytest.fixture
def watch() -> Iterator[Watch]:
    made = Watch(in_memory=True)
    made.guests = cast("Guests[Peer]", SimpleNamespace(changed=False, sweep=lambda: None))
    yield made
    made.close()


def test_a_request_that_waits_for_its_announcement_is_asked_beside_a_busy_peer(watch: Watch) -> None:
    """Nothing else does: its announcement comes over a connection that a poll would tell of, and none is made."""
    busy, blocked = Fake(busy=True), Fake(busy=False)
    watch.served = cast("tuple[Peer, ...]", (busy, blocked))
    for looks in range(1, 4):
        watch.stay_awake()
        watch.look(1.0)
        assert (busy.advanced, blocked.advanced) == (looks, looks)
