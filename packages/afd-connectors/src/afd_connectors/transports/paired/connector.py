"""What every paired transport is to its users: features, devices, options and how its ports are made."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

from afd_connectors import address
from afd_connectors.ports import AttentionPort, Connector, FFNPort, refuse_unknown

if TYPE_CHECKING:
    from afd_connectors.listener import Arrival
    from afd_connectors.transports.paired.lines import MakeLine
    from afd_connectors.transports.paired.peer import Peer

GATHER_OPTION = "gather_ms"


class Paired(Connector):
    """A control and a data connection per pair of ranks; a subclass says what carries the rows.

    in_memory: whether requests arrive without a poll telling.

    Options: ffn_addresses, a list of "host:port", one per FFN rank; standby_addresses, a list of "host:port" of FFN
    servers that attention ranks try in turn when their own is lost; gather_ms, how long an FFN rank waits for the
    rows of attention ranks that stand at the same layer before it computes without them (default 1).
    """

    features: ClassVar[frozenset[str]] = frozenset({"router", "variable_tokens", "reconnect"})
    devices: ClassVar[frozenset[str]] = frozenset({"cpu"})
    in_memory: ClassVar[bool] = False

    @abstractmethod
    def line_maker(self) -> MakeLine:
        """What an attention rank makes of its connections to an FFN rank."""

    @abstractmethod
    def seat_maker(self) -> Callable[[Arrival], Peer]:
        """What an FFN rank makes of an arrival; ConnectorError when it cannot."""

    def make_attention_port(self) -> AttentionPort:
        """See Connector."""
        from afd_connectors.transports.paired.attention import PairedAttentionPort

        return PairedAttentionPort(self.name, self.layout, self.shape, self.facts, self.settings, self.line_maker())

    def make_ffn_port(self) -> FFNPort:
        """See Connector."""
        from afd_connectors.transports.paired.ffn import PairedFFNPort

        return PairedFFNPort(
            self.name,
            self.layout,
            self.shape,
            self.facts,
            self.settings,
            self.seat_maker(),
            in_memory=self.in_memory,
            gather_s=self.gather_s,
        )

    @classmethod
    def check_options(cls, extra: Mapping[str, object]) -> None:
        """See Connector."""
        check_options(cls.name, extra)

    @property
    def gather_s(self) -> float:
        """The gather_ms option in seconds."""
        return gather_seconds(self.settings.extra)

    @property
    def gathered_bytes(self) -> int:
        """Bytes in which an FFN rank puts the rows of several attention ranks together."""
        peers = len(self.layout.peers)
        return self.shape.stages * (peers if peers > 1 else 0) * self.shape.exchange_bytes


def check_options(name: str, extra: Mapping[str, object], *others: str) -> None:
    """ValueError for anything but addresses, a gathering time and `others`; name: the connector's."""
    refuse_unknown(name, extra, (address.OPTION, address.STANDBY, GATHER_OPTION, *others))
    for option in (address.OPTION, address.STANDBY):
        if option in extra:
            address.parse(extra[option], option)
    gather_seconds(extra)


def gather_seconds(extra: Mapping[str, object]) -> float:
    """The gather_ms option in seconds; ValueError for anything but 0 to 1000 milliseconds."""
    value = extra.get(GATHER_OPTION, 1)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1000:
        raise ValueError(f"{GATHER_OPTION} must be a number of milliseconds from 0 to 1000, found {value!r}.")
    return value / 1000
