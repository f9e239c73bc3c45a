"""The life of an MQTT connection as a table, and the events that it yields. The reference draws its picture from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from . import packets as p
from .codec import Limits
from .inflow import Inflow
from .reasons import Reason

OPENING: Final = "opening"
CONNECTING: Final = "connecting"
ONLINE: Final = "online"
CLOSED: Final = "closed"

# What may happen in a state, and where it leads. A packet that is not listed is a protocol error.
LIFE: Final[dict[tuple[str, str], str]] = {
    (OPENING, "CONNECT"): CONNECTING,
    (OPENING, "malformed"): CLOSED,
    (OPENING, "timeout"): CLOSED,
    (OPENING, "lost"): CLOSED,
    (CONNECTING, "accept"): ONLINE,
    (CONNECTING, "refuse"): CLOSED,
    (CONNECTING, "lost"): CLOSED,
    (ONLINE, "PUBLISH"): ONLINE,
    (ONLINE, "PUBACK"): ONLINE,
    (ONLINE, "PUBREC"): ONLINE,
    (ONLINE, "PUBREL"): ONLINE,
    (ONLINE, "PUBCOMP"): ONLINE,
    (ONLINE, "SUBSCRIBE"): ONLINE,
    (ONLINE, "UNSUBSCRIBE"): ONLINE,
    (ONLINE, "PINGREQ"): ONLINE,
    (ONLINE, "DISCONNECT"): CLOSED,
    (ONLINE, "malformed"): CLOSED,
    (ONLINE, "timeout"): CLOSED,
    (ONLINE, "close"): CLOSED,
    (ONLINE, "lost"): CLOSED,
}

Tag: TypeAlias = object


class Offer(NamedTuple):
    """What the server grants. Sizes in bytes, times in seconds, counts in messages.

    ``receive_maximum``: unanswered messages from a client. ``window``: unanswered messages to one. ``aliases``: topic
    aliases that a client may use. ``connect_within``: how long a stranger has to say who it is.
    """

    receive_maximum: int = 1_024
    window: int = 1_024
    aliases: int = 64
    max_keep_alive: int = 1_200
    max_session_expiry: int = 7 * 24 * 3600
    connect_within: float = 5.0
    limits: Limits = Limits()


class Settled(NamedTuple):
    """The client has the messages with these tags; ``refused`` of them it did not want."""

    tags: list[Tag]
    refused: int


class Resumed(NamedTuple):
    """What a session that is kept brings into its next connection.

    ``reserved``: packet ids of messages that were under way to the client; ``released``: of those at QoS 2 that it has.
    ``inflow``: what it sent at QoS 2. ``durable``: it outlives this connection, too.
    """

    reserved: Sequence[int] = ()
    released: Sequence[int] = ()
    inflow: Inflow | None = None
    durable: bool = False


class Ended(NamedTuple):
    """Nothing more will come. ``will``: the client's will is due. ``expiry``: seconds that its session outlives it."""

    reason: Reason
    text: str
    will: bool
    expiry: int


Event: TypeAlias = p.Connect | p.Burst | p.Publish | p.Oversized | p.Subscribe | p.Unsubscribe | Settled | Ended


def picture() -> str:
    """The table as a Mermaid state diagram."""
    edges: dict[tuple[str, str], list[str]] = {}
    for (state, trigger), following in LIFE.items():
        edges.setdefault((state, following), []).append(trigger)
    lines = ["stateDiagram-v2", f"    [*] --> {OPENING}"]
    lines += [f"    {state} --> {following}: {', '.join(triggers)}" for (state, following), triggers in edges.items()]
    return "\n".join([*lines, f"    {CLOSED} --> [*]"])
