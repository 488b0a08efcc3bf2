"""Says whom a rank waits for, every few seconds, so that nobody stares at a silent start."""

from __future__ import annotations

import logging
import time

from afd_connectors.deadline import Deadline

EVERY_S = 5.0


class Waiting:
    """One wait of an attention rank for an FFN rank; `reason` is why the last try failed, if it is known."""

    def __init__(self, log: logging.Logger, rank: int, peer: int, address: str, deadline: Deadline) -> None:
        self._log, self._deadline = log, deadline
        self._who = f"attention rank {rank} waits for FFN rank {peer} at {address}"
        self._missed = f"attention rank {rank} did not reach FFN rank {peer} at {address}"
        self._next = time.monotonic() + 1.0
        self.reason = "nothing listens there"

    def tell(self) -> None:
        """Logs one line unless the last one is recent."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY_S
            spent, total = self._deadline.spent(), self._deadline.seconds
            self._log.info("%s (%.0f s of %.0f s): %s", self._who, spent, total, self.reason.rstrip("."))

    def verdict(self) -> str:
        """The sentence after the deadline has passed."""
        return (
            f"{self._missed} within {self._deadline.seconds:g} s: {self.reason.rstrip('.')}; "
            "start that FFN server or correct host and port"
        )
