"""Moves activations between the attention role and the FFN role; knows no engine."""

from afd_connectors.deadline import Deadline
from afd_connectors.errors import ConnectorError, DeadlineExceeded, FrameError, HandshakeRefused, PeerLost
from afd_connectors.event import Event, Phase
from afd_connectors.facts import PROTOCOL, Facts
from afd_connectors.layout import Layout, Role, role_rank
from afd_connectors.ports import AttentionPort, Connector, FFNPort, PeerStatus, Port, Work
from afd_connectors.registry import names, resolve
from afd_connectors.settings import Settings
from afd_connectors.shape import Shape
from afd_connectors.step import MAX_STAGES, Mode, Step

__version__ = "0.1.0"

__all__ = [
    "MAX_STAGES",
    "PROTOCOL",
    "AttentionPort",
    "Connector",
    "ConnectorError",
    "Deadline",
    "DeadlineExceeded",
    "Event",
    "FFNPort",
    "Facts",
    "FrameError",
    "HandshakeRefused",
    "Layout",
    "Mode",
    "PeerLost",
    "PeerStatus",
    "Phase",
    "Port",
    "Role",
    "Settings",
    "Shape",
    "Step",
    "Work",
    "names",
    "resolve",
    "role_rank",
]
