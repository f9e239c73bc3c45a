"""What a bridge is given: its use cases, and the limits that hold for every broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...adapters.edge import Edge
from ...adapters.requests import Requests
from ...use_cases.ports.clock import Clock
from ...use_cases.ports.documents import Documents
from ...use_cases.ports.message_log import MessageLog
from ...use_cases.publish import MessagePublishUseCase

MAX_PACKET_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BridgeUseCases:
    """What a bridge leads to. Without ``requests`` all messages go into the log."""

    edge: Edge
    publish: MessagePublishUseCase
    log: MessageLog
    documents: Documents
    clock: Clock
    requests: Requests | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeOptions:
    """``node`` and ``ordinal`` make the client id, the same after a restart. Times in seconds.

    ``connect``: for TCP and TLS, and again for CONNACK and SUBACK. ``first_retry`` … ``last_retry``: full jitter between
    them. ``stable``: a connection that lived as long begins with short pauses again. ``overdue``: age of an
    unacknowledged message that is worth an alarm. ``answer``: for a PUBACK of the broker. ``window``: messages on their
    way out. ``held_bytes``: what may wait for the log before the connection is given up until it is back; ``loose_bytes``:
    the part of it that QoS 0 messages may take. ``per_device``: messages a second out to one device, past which
    something goes round in circles.
    """

    node: str = "gateway"
    ordinal: int = 0
    connect: float = 5.0
    first_retry: float = 0.5
    last_retry: float = 30.0
    stable: float = 30.0
    overdue: float = 30.0
    answer: float = 30.0
    window: int = 20
    held_bytes: int = 32 * 1024 * 1024
    loose_bytes: int = 8 * 1024 * 1024
    per_device: int = 100
    takeovers: int = 3
    takeovers_within: float = 60.0
    alert_every: float = 60.0
