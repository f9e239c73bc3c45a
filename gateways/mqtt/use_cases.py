"""What the MQTT door leads to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ...adapters.edge import Edge
from ...adapters.mqtt.playground import Playground
from ...entities.message import Record
from ...entities.principal import Principal
from ...entities.topic import Topic
from ...use_cases.access.authenticate import Authenticate
from ...use_cases.access.rate_limit import RateLimit
from ...use_cases.last_values import LastValues
from ...use_cases.ports.clock import Clock
from ...use_cases.publish import MessagePublishUseCase
from ...use_cases.session.presence import Presence
from ...use_cases.session.sessions import Sessions
from ...use_cases.session.state import Carried, Wanted
from ...use_cases.session.wills import Wills
from ...use_cases.sharing.sharing import Sharing
from ...use_cases.subscribe import MessageSubscriptionUseCase

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
