"""The contract of a transport: what each role may call, and how a connector is built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from afd_connectors.errors import spoken
from afd_connectors.event import Event
from afd_connectors.facts import Facts
from afd_connectors.layout import Layout, Role
from afd_connectors.settings import Settings
from afd_connectors.shape import Shape
from afd_connectors.step import Step

if TYPE_CHECKING:
    from torch import Tensor

FEATURES = frozenset({"graph", "async", "router", "variable_tokens", "reconnect"})
Reach = Literal["threads", "host", "network"]


class Work(NamedTuple):
    """One exchange for the FFN role to compute; a tuple because one is made per exchange.

    hidden: [rows, hidden] in the shape's dtype, the rows of all attention peers of this exchange, contiguous,
    valid until `send`; router: [rows, router] or None; step: as announced by the first of these peers;
    ticket: belongs to the port, handed back by passing the work to `send`.
    """

    step: Step
    layer: int
    stage: int
    hidden: Tensor
    router: Tensor | None
    ticket: object


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """What a port knows about one peer; since: time.monotonic() seconds at which the state began."""

    rank: int
    state: Literal["waiting", "connected", "lost"]
    since: float
    address: str
    last_event: Event | None


class Port(ABC):
    """One open end of a transport."""

    @abstractmethod
    def peers(self) -> tuple[PeerStatus, ...]:
        """One status per peer of the layout, ascending by rank."""

    @abstractmethod
    def close(self) -> None:
        """Frees every socket, thread and buffer; may be called twice, and from another thread than the
        user's.
        """


class AttentionPort(Port):
    """The attention role's end. Every call ends in a result or an error within the settings' times."""

    @abstractmethod
    def begin(self, step: Step) -> None:
        """Announces a step on the control plane; once per step, with a larger seq each time."""

    @abstractmethod
    def send(self, step: Step, layer: int, hidden: Tensor, router: Tensor | None = None, *, stage: int = 0) -> None:
        """Sends [step.tokens[stage], hidden] rows and, where the gate is computed here, [rows, router]
        logits.

        Returns once the tensors may be written again. A lost peer shows in `recv`, not here.
        """

    @abstractmethod
    def recv(self, step: Step, layer: int, out: Tensor, *, stage: int = 0) -> None:
        """Fills `out` [rows, hidden] with the answer to the `send` of the same step, layer and stage."""


class FFNPort(Port):
    """The FFN role's end; one thread calls recv and send. A peer's failure is logged, never raised.

    on_step: if set, called within recv when the only attention rank that is connected has announced a step and none of
    its exchanges is there yet, by transports that learn of it before; meanwhile nothing is received.
    """

    on_step: Callable[[], None] | None = None

    @abstractmethod
    def recv(self, stage: int | None = None, *, wait_s: float) -> Work | None:
        """The next exchange of `stage` (None: of any), or None when nothing came within `wait_s` seconds.

        Idle is safe for ever. At most one work per stage is out at a time. ConnectorError on a closed port.
        """

    @abstractmethod
    def send(self, work: Work, out: Tensor) -> None:
        """Answers `work` with `out` [rows, hidden]; a peer that is gone by now is passed over."""


class Connector(ABC):
    """One rank's transport, before anything is opened.

    features is a subset of FEATURES: "graph" calls only enqueue, so that exchanges can be captured, and the ports are
    those of `stepped`; "async" FFN peers need not run in step; "router" logits travel along; "variable_tokens" rows
    differ by step and rank; "reconnect" an attention port goes on with a restarted FFN rank: it finishes the open
    exchange itself or, with "graph", voids the step, which its user repeats over the same port. devices: torch device
    types that it carries. reach: how far apart the roles may be, in "threads" of one process, in processes of one
    "host" or on any hosts of a "network"; the default claims the least. Raises ValueError for bad options.
    """

    name: ClassVar[str]
    features: ClassVar[frozenset[str]]
    devices: ClassVar[frozenset[str]]
    reach: ClassVar[Reach] = "threads"

    def __init__(self, layout: Layout, shape: Shape, facts: Facts, settings: Settings) -> None:
        self.check_options(settings.extra)
        if shape.router and "router" not in self.features:
            raise ValueError(f"connector {self.name!r} carries no router logits; set router to 0 in the shape.")
        misfit = self.misfit(shape)
        if misfit is not None:
            raise ValueError(f"connector {self.name!r} {misfit}.")
        self.layout = layout
        self.shape = shape
        self.facts = facts
        self.settings = settings

    @classmethod
    def check_options(cls, extra: Mapping[str, object]) -> None:
        """ValueError for a key or value that this connector does not know; the default knows none."""
        refuse_unknown(cls.name, extra, ())

    @classmethod
    def misfit(cls, shape: Shape) -> str | None:  # noqa: ARG003
        """Why exchanges of a shape cannot be carried, None when they can, as the default says of every one."""
        return None

    @abstractmethod
    def bytes_needed(self) -> int:
        """Bytes of device memory that the open port keeps allocated."""

    def open_attention(self) -> AttentionPort:
        """Meets every FFN peer within join_timeout_s; ValueError on an FFN layout."""
        self._expect("attention")
        return self.make_attention_port()

    def open_ffn(self) -> FFNPort:
        """Listens at once and lets attention peers come and go; ValueError on an attention layout."""
        self._expect("ffn")
        return self.make_ffn_port()

    @abstractmethod
    def make_attention_port(self) -> AttentionPort:
        """What open_attention returns, for a layout that has been checked."""

    @abstractmethod
    def make_ffn_port(self) -> FFNPort:
        """What open_ffn returns, for a layout that has been checked."""

    def _expect(self, role: Role) -> None:
        if self.layout.role != role:
            raise ValueError(
                f"the {self.name} connector was built for {spoken(self.layout.role)} rank "
                f"{self.layout.rank}, found a call that opens its {spoken(role)} port; "
                "open the port of its own role."
            )


def refuse_unknown(name: str, extra: Mapping[str, object], known: tuple[str, ...]) -> None:
    """ValueError when `extra` holds a key that is not in `known`."""
    for key in extra:
        if key not in known:
            options = f"knows {', '.join(known)}" if known else "takes no options"
            raise ValueError(f"connector {name!r} {options}, found option {key!r}; remove it or correct its name.")
