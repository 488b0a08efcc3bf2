"""Builds errors that name where they happened."""

from __future__ import annotations

from typing import TypeVar

from afd_connectors.errors import ConnectorError
from afd_connectors.event import Event
from afd_connectors.layout import Layout

E = TypeVar("E", bound=ConnectorError)


class Place:
    """A rank of a transport, and what it did last; ports keep one and update `event`."""

    __slots__ = ("event", "layout", "transport")

    def __init__(self, transport: str, layout: Layout, event: Event) -> None:
        self.transport = transport
        self.layout = layout
        self.event = event

    def error(
        self,
        kind: type[E],
        message: str,
        peer: int,
        theirs: Event | None = None,
        *,
        step: int | None = None,
        layer: int | None = None,
        stage: int | None = None,
    ) -> E:
        """An error of `kind` with all its fields; `theirs` is the peer's last known event."""
        return kind(
            message,
            transport=self.transport,
            role=self.layout.role,
            rank=self.layout.rank,
            peer=peer,
            step=step,
            layer=layer,
            stage=stage,
            own_event=self.event,
            peer_event=theirs,
        )
