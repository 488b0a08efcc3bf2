"""One attention rank as an FFN rank knows it while it is connected, whatever carries its rows."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable

from afd_connectors.channel import Channel
from afd_connectors.control import Logits
from afd_connectors.listener import Arrival
from afd_connectors.step import Step


class Served:
    """Its two connections and how they end. dropped: no longer served; data: the connection that is not the control's.

    on_step, on_logits: called for what is announced, under the channel's lock on whichever thread drains it.
    """

    def __init__(
        self, arrival: Arrival, on_step: Callable[[Step], None], on_logits: Callable[[Logits], None] | None = None
    ) -> None:
        self.rank, self.address, self.data = arrival.rank, arrival.address, arrival.data
        self.channel = Channel(arrival.control, on_step, on_logits)
        self.since = time.monotonic()
        self.dropped = False

    def hang_up(self) -> None:
        """Ends both connections for every thread; `free` gives the descriptors back."""
        self.dropped = True
        for sock in (self.channel.sock, self.data):
            with contextlib.suppress(OSError):  # not connected any more, which is what is wanted
                sock.shutdown(socket.SHUT_RDWR)

    def free(self) -> None:
        """Closes the sockets; only on the thread that reads them."""
        self.channel.sock.close()
        self.data.close()
