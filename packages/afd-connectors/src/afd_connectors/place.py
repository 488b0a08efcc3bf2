"""Builds errors that name where they happened."""

from __future__ import annotations

from typing import TypeVar

from afd_connectors.errors import ConnectorError
from afd_connectors.event import Event, Moment
from afd_connectors.layout import Layout

E = TypeVar("E", bound=ConnectorError)


class Place:
    """A rank of a transport, and what it did last; ports keep one and update `event`.

    moment: the event's fields, for ports that write it twice per exchange while hardly anyone asks for it.
    """

    __slots__ = ("layout", "moment", "transport")

    def __init__(self, transport: str, layout: Layout, event: Event) -> None:
        self.transport = transport
        self.layout = layout
        self.moment: Moment = event

    @property
    def event(self) -> Event:
        """What was done last."""
        return Event(*self.moment)

    @event.setter
    def event(self, event: Event) -> None:
        self.moment = event

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
