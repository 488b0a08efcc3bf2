"""tcp between two hosts: each rank has a network namespace of its own, and a cable between them is all they share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from afd_connectors import DeadlineExceeded, HandshakeRefused, Settings
from tests.support.netns import Cable
from tests.support.ranks import Rank, attention, forward

pytestmark = pytest.mark.needs_netns
SETTINGS = Settings(port=1241, timeout_s=5, recovery_timeout_s=10, join_timeout_s=30, secret="shared by both hosts")


@pytest.fixture(scope="module")
def cable() -> Iterator[Cable]:
    with Cable() as cable:
        yield cable


@contextmanager
def ffn(cable: Cable, settings: Settings) -> Iterator[None]:
    """An FFN rank on the other host."""
    rank = Rank("tcp", "ffn", settings, cable.name)
    try:
        yield
    finally:
        rank.end()


def test_exchanges_between_two_hosts(cable: Cable) -> None:
    settings = replace(SETTINGS, host=cable.there)
    with ffn(cable, settings):
        port = attention("tcp", settings)
        for seq in (1, 2, 3):
            forward(port, seq)
        (status,) = port.peers()
        assert status.address == f"{cable.there}:1241"
        port.close()


def test_a_host_without_the_secret_is_refused(cable: Cable) -> None:
    settings = replace(SETTINGS, host=cable.there)
    with ffn(cable, settings):
        with pytest.raises(HandshakeRefused, match="were given different secrets"):
            attention("tcp", replace(settings, secret="a guess"))
        with pytest.raises(HandshakeRefused, match="a secret is set on FFN rank 0 but not on attention rank 0"):
            attention("tcp", replace(settings, secret=None))


def test_the_default_host_is_not_reached_from_another(cable: Cable) -> None:
    """An FFN rank that was told no host listens on loopback alone, also where the cable would lead to it."""
    with ffn(cable, SETTINGS):
        told = replace(SETTINGS, host=cable.there, join_timeout_s=1.5)
        with pytest.raises(
            DeadlineExceeded, match=rf"{re.escape(cable.there)}:1241 does not answer: Connection refused"
        ):
            attention("tcp", told)
