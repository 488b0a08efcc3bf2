"""An arrival that is turned away at the last moment takes its connections with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from afd_connectors.layout import Layout
from afd_connectors.listener import Arrival
from afd_connectors.transports.paired.guests import Guests


class Peer:
    """A guest that counts how often it was hung up and freed."""

    rank, address, since, dropped = 0, "here", 0.0, False
    channel = SimpleNamespace(drain=lambda: None, gone=lambda: False, silent_s=lambda: 0.0, lost=None)

    def __init__(self) -> None:
        self.ends = self.freed = 0

    def hang_up(self) -> None:
        self.ends += 1

    def free(self) -> None:
        self.freed += 1


def guests_of(*seats: Peer) -> Guests[Peer]:  # type: ignore[type-var]
    arriving = iter(seats)
    return Guests(Layout("ffn", 0, 1, 1), 5.0, lambda _arrival: next(arriving), lambda: None)


ARRIVAL = cast("Arrival", SimpleNamespace(rank=0, address="here"))


def test_a_second_holder_that_arrives_is_hung_up_and_the_first_stays() -> None:
    first, second = Peer(), Peer()
    guests = guests_of(first, second)
    assert guests.welcome(ARRIVAL) is None
    assert "already served" in str(guests.welcome(ARRIVAL))
    assert (first.ends, second.ends) == (0, 1)
    assert (first.freed, second.freed) == (0, 1)
    assert list(guests) == [first]


def test_an_arrival_at_a_port_that_closes_is_hung_up() -> None:
    late = Peer()
    guests = guests_of(late)
    guests.closed = True
    assert "is closing" in str(guests.welcome(ARRIVAL))
    assert late.ends == late.freed == 1
    assert not list(guests)
