"""What every client library is asked to do, whatever its own words for it are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

WITHIN_S = 60.0


class Got(NamedTuple):
    """A message as the library handed it over."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


class Refused(Exception):
    """The gateway said no. ``code``: the MQTT reason code, None where the library does not tell."""

    def __init__(self, code: int | None, text: str = "") -> None:
        super().__init__(text)
        self.code = code


class Lost(Exception):
    """The connection ended before the answer came."""


@dataclass(frozen=True, slots=True)
class Login:
    """Where and as whom to connect. ``version``: 4 is MQTT 3.1.1, 5 is MQTT 5."""

    host: str
    port: int
    username: str
    password: str
    version: int
    client_id: str
    websocket: bool = False


class Library(Protocol):
    """One client of one library. Leaving its context ends it, whatever became of its connection.

    ``patient``: publishes outlive a lost connection; otherwise they fail with it.
    """

    patient: bool

    def __init__(self, login: Login) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def connect(self, *, clean: bool = True) -> bool:
        """Connect, with a session to be kept unless ``clean``; tells whether one was present. Raises Refused."""
        ...

    async def subscribe(self, topic_filter: str, qos: int) -> int:
        """Subscribe; returns the granted QoS. Raises Refused."""
        ...

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        """Publish, and wait until the gateway has it (at QoS 0: until it is sent). Raises Refused and Lost."""
        ...

    async def message(self) -> Got:
        """The next message that came."""
        ...

    async def disconnect(self) -> None:
        """Say goodbye; the session stays if it was to be kept."""
        ...
