"""How an attention rank stands with its FFN ranks, as one small value."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from afd_connectors.ports import PeerStatus

#: A peer that is replaced faster than this was hardly waited for, and no probe need hear of it.
NOTICED_S = 1.0


class Status(IntEnum):
    """In rising urgency; see the package's docstring for what each means."""

    SERVING = 0
    LOST = 1
    WAITING = 2


@dataclass(frozen=True, slots=True)
class Standing:
    """peers: FFN ranks that are lost, ascending; since: time.monotonic() seconds of the first loss, 0 without one."""

    status: Status
    peers: tuple[int, ...] = ()
    since: float = 0.0

    def told(self, now: float) -> dict[str, object]:
        """The JSON object that a probe gets."""
        said: dict[str, object] = {"status": self.status.name.lower()}
        if self.peers:
            said["for"] = [f"FFN rank {peer}" for peer in self.peers]
            said["since_s"] = round(max(0.0, now - self.since), 1)
        return said


SERVING = Standing(Status.SERVING)


def standing(peers: Iterable[PeerStatus], *, underway: bool, now: float | None = None) -> Standing:
    """The standing of a port with these peers; underway: whether one of its exchanges is open."""
    now = time.monotonic() if now is None else now
    lost = [peer for peer in peers if peer.state == "lost" and now - peer.since >= NOTICED_S]
    if not lost:
        return SERVING
    status = Status.WAITING if underway else Status.LOST
    return Standing(status, tuple(sorted(peer.rank for peer in lost)), min(peer.since for peer in lost))


def worst(standings: Iterable[Standing]) -> Standing:
    """What several ranks of one server amount to: the most urgent status, whom it waits for, the longest wait."""
    found = tuple(standings)
    status = max((each.status for each in found), default=Status.SERVING)
    if status is Status.SERVING:
        return SERVING
    urgent = [each for each in found if each.status is status]
    peers = sorted({peer for each in urgent for peer in each.peers})
    return Standing(status, tuple(peers), min(each.since for each in urgent))
