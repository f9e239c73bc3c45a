"""What all MQTT connections share: the use cases behind the door, its limits, its counters, and who is connected."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ...adapters.edge import Edge
from ...adapters.mqtt.life import Offer
from ...adapters.mqtt.playground import Playground
from ...adapters.mqtt.reasons import Reason
from ...entities.errors import Refused
from ...entities.message import Record
from ...entities.principal import Principal
from ...entities.topic import Topic, parse_topic
from ...use_cases.access.authenticate import Authenticate
from ...use_cases.access.rate_limit import RateLimit
from ...use_cases.last_values import LastValues
from ...use_cases.ports.clock import Clock
from ...use_cases.publish import MessagePublishUseCase
from ...use_cases.session.presence import Presence
from ...use_cases.session.sessions import Sessions
from ...use_cases.session.state import Carried, Wanted
from ...use_cases.session.wills import Will, Wills
from ...use_cases.sharing.sharing import Sharing
from ...use_cases.subscribe import MessageSubscriptionUseCase
from .admission import MqttAdmission
from .takeovers import Takeovers
from .turn import Turn

if TYPE_CHECKING:
    from .client import MqttClient
    from .visit import MqttVisit


Push: TypeAlias = Callable[[Iterable[Record]], None]


class DeviceCare(Protocol):
    """Who follows what becomes of certain messages to devices: commands, and what their shadows lack."""

    def watches(self, topic: str) -> bool:
        """Whether the fate of this topic's messages matters. Asked once per client and topic, so it may not change."""
        ...

    def begin(self, principal: Principal, push: Push, carried: Carried) -> None:
        """A device has connected. What its session carries from earlier connections is pushed again, or let go.

        ``push`` sends it messages, and raises nothing; it is the same for one connection until ``left``.
        """
        ...

    async def greet(self, principal: Principal, wanted: Collection[Wanted], push: Push) -> Sequence[Record]:
        """What a device gets first when it has connected with these filters, or has subscribed to one more.

        It comes after retained values and before what is live, is tracked like every message, and has no place in the
        log: what is not acknowledged when the connection ends is this side's to repeat. What cannot be known now is
        pushed later. Raises LogUnavailable, which is then the connection's end.
        """
        ...

    def mark(self, record: Record) -> str:
        """By what a message that was pushed is known again: the same for what says the same."""
        ...

    def is_written(self, mark: str) -> bool:
        """Whether what was ``acknowledged`` is on record here, or need not be."""
        ...

    def skip(self, principal: Principal, record: Record, push: Push) -> bool:
        """Whether a watched message is not to be sent any more, since something newer says the same."""
        ...

    def left(self, principal: Principal, push: Push) -> None:
        """The connection is over: nothing can be pushed to it any more."""
        ...

    def sent(self, principal: Principal, record: Record, push: Push) -> None:
        """A watched message was handed to the socket. It may be again, after a lost connection."""
        ...

    def acknowledged(self, principal: Principal, record: Record, refused: bool) -> None:
        """The device has a watched message (PUBACK, or PUBREC at QoS 2), or does not want it."""
        ...


class DeviceRequests(Protocol):
    """Who carries out what some topics ask for, so that a PUBACK there means "done"."""

    def handles(self, topic: Topic) -> bool:
        """Whether a publish to this topic is carried out instead of being appended. Asked once per client and topic."""
        ...

    async def __call__(self, principal: Principal, record: Record) -> None:
        """Carry it out, durably. Repeating it with the same message id is safe. Raises IotSphereError."""
        ...


@dataclass(frozen=True, slots=True)
class MqttUseCases:
    """What the door leads to. ``care``, ``requests`` and ``sharing`` may be missing.

    With a ``playground`` it is for guests alone.
    """

    authenticate: Authenticate
    publish: MessagePublishUseCase
    subscribe: MessageSubscriptionUseCase
    edge: Edge
    last_values: LastValues
    sessions: Sessions
    presence: Presence
    rates: RateLimit
    clock: Clock
    wills: Wills
    care: DeviceCare | None = None
    requests: DeviceRequests | None = None
    playground: Playground | None = None
    sharing: Sharing | None = None


@dataclass(frozen=True, slots=True)
class MqttLimits:
    """Bounds of the door.

    ``per_address`` does not bind loopback addresses unless ``limit_loopback``; ``strangers_per_address`` always does:
    past it, the oldest connection that has not logged in is cut. ``unappended_bytes``: what one client may have on its
    way into the log before its socket is read no further. ``outbox_bytes``: what may wait for one client before its
    reader falls back to the log. ``close_on_denial``: a 3.1.1 client that publishes where it must not is cut off;
    otherwise it is told on its errors topic. ``requests_under_way``: requests of one client that are being carried out.
    """

    connections: int = 10_000
    per_address: int = 200
    limit_loopback: bool = False
    strangers_per_address: int = 100
    unappended_bytes: int = 256 * 1024
    outbox_bytes: int = 256 * 1024
    filters: int = 1_000
    waiting_requests: int = 16
    requests_under_way: int = 64
    close_on_denial: bool = True
    offer: Offer = field(default_factory=lambda: Offer(connect_within=4.5))


class Wire(Protocol):
    """The socket below a connection, as an asyncio transport has it."""

    def write(self, data: bytes) -> None:
        """Send, or keep until it can be sent."""
        ...

    def pause_reading(self) -> None:
        """Take no more from the client."""
        ...

    def resume_reading(self) -> None:
        """Go on."""
        ...

    def close(self) -> None:
        """End it once everything is sent."""
        ...

    def abort(self) -> None:
        """End it now."""
        ...


class Ties(Protocol):
    """What a visit needs of its connection."""

    def flush(self) -> None:
        """Send what the session has to say."""
        ...

    def answered(self) -> None:
        """Answers lie in the session, and nothing else has changed but that less is under way."""
        ...

    def moved(self) -> None:
        """Answers lie in the session, or the way in has failed."""
        ...

    def close(self, reason: Reason, text: str) -> None:
        """End the connection."""
        ...

    def pause(self, why: str) -> None:
        """Read no further, for one more cause."""
        ...

    def resume(self, why: str) -> None:
        """A cause is gone."""
        ...


class MqttDoor:
    """What connections share. ``online``: the visit of each client, by session key. ``empty``: set without clients.

    ``turn``: gathers plain messages; None lets each read go its own way, as it must where guests play.
    """

    def __init__(self, use_cases: MqttUseCases, limits: MqttLimits) -> None:
        self.use = use_cases
        self.limits = limits
        self.counts: Counter[str] = Counter()
        self.admission = MqttAdmission(limits, self.counts)
        self.clients: dict[MqttClient, None] = {}
        self.online: dict[str, MqttVisit] = {}
        self.draining = False
        self.watches = use_cases.care.watches if use_cases.care is not None else None
        gathers = use_cases.playground is None
        self.turn = Turn(use_cases.edge, use_cases.publish, use_cases.clock, self.counts) if gathers else None
        self.takeovers = Takeovers(use_cases.edge, use_cases.publish, use_cases.clock, self.counts)
        self.empty = asyncio.Event()
        self.empty.set()
        if use_cases.requests is not None:
            use_cases.wills.carry_out = self._carry_out

    def enter(self, client: MqttClient) -> None:
        """A socket was opened."""
        self.clients[client] = None
        self.empty.clear()

    def forget(self, client: MqttClient) -> None:
        """A connection is over, with all that it had to do."""
        self.clients.pop(client, None)
        if not self.clients:
            self.empty.set()

    async def _carry_out(self, will: Will, record: Record) -> bool:
        """Carry a will out where its topic asks for that; a refusal is counted, since nobody is there to hear it."""
        requests = self.use.requests
        if requests is None or record.topic != will.topic or not requests.handles(parse_topic(will.topic)):
            return False
        try:
            await requests(Principal(will.kind, will.name, will.domain), record)
        except Refused:
            self.counts["wills_refused"] += 1
        return True
