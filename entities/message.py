"""Messages: the envelope that every wire carries, and its compact form for the log."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from .position import Partition, Position

MESSAGE_TYPES: Final = ("event", "command", "response", "notification")
VERSION: Final = "1.0"
MAX_PAYLOAD_BYTES: Final = 256 * 1024
MAX_KEY_CHARACTERS: Final = 128
MAX_JSON_DEPTH: Final = 32
MAX_SAMPLES: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What is known of a message. Times are ISO-8601 texts in UTC with milliseconds, ``correlation_data`` is base64.

    ``properties``: (name, text) pairs of the sender's own; a name may come twice.
    """

    message_id: str
    timestamp: str
    topic: str
    source: str
    correlation_id: str | None = None
    message_type: str = "event"
    version: str = VERSION
    received_at: str | None = None
    content_type: str | None = None
    expires_at: str | None = None
    traceparent: str | None = None
    quality: str | None = None
    response_topic: str | None = None
    correlation_data: str | None = None
    properties: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """A message as services see it: metadata, and the payload as canonical JSON bytes."""

    metadata: Metadata
    payload: bytes

    @property
    def topic(self) -> str:
        """Where it was published."""
        return self.metadata.topic

    def json(self) -> Any:
        """The payload's value."""
        return json.loads(self.payload)


class Record(NamedTuple):
    """A message in its wire form, with the few facts that routing, dedupe and retention need without parsing.

    ``body``: the whole envelope, UTF-8 JSON. ``timestamp``, ``expires_at``: ms since 1970; 0 = never expires.
    ``retain``: it is its topic's retained value (MQTT 5 section 3.3.1.3). ``minted``: the gateway made the message id
    for this very append, so no sender can repeat it and no dedupe index has to remember it. ``qos``: of its publication,
    0 to 2, and of its delivery at most; 2 for whatever did not come over MQTT.
    """

    partition: Partition
    topic: str
    message_id: str
    body: bytes
    timestamp: int
    expires_at: int = 0
    retain: bool = False
    minted: bool = False
    qos: int = 2


class Entry(NamedTuple):
    """A record in its place in the log. ``appended_at``: ms since 1970, by the log's clock."""

    position: Position
    appended_at: int
    record: Record


class StoredEntries(Sequence[Entry]):
    """Entries of one partition as they are stored, all sound; each is taken apart only where somebody looks at it."""

    __slots__ = ()

    @abstractmethod
    def select(self, selects: Callable[[str], bool], now: int) -> tuple[StoredEntries, Sequence[Entry]]:
        """Those whose topic is selected and that have not expired by ``now`` (ms), and those that have."""

    @abstractmethod
    def bodies(self) -> Sequence[bytes]:
        """The body of each."""

    @abstractmethod
    def positions(self) -> Sequence[Position]:
        """The position of each."""

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as lists have none
