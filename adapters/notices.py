"""What the gateway tells a device about itself: its presence, and what became of its messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import orjson

from ..entities.errors import IotSphereError
from ..entities.message import Record
from ..entities.position import Gap
from ..entities.principal import Principal
from ..use_cases.session.presence import State
from . import dead_letter
from .client.protocol import gap_facts
from .edge import Edge
from .mqtt.packets import Oversized
from .timestamps import iso

MESSAGES_MISSED: Final = "messages_missed"


def presence_record(edge: Edge, domain: str, device_id: str, state: State, now: int) -> Record:
    """The retained message on ``{domain}/devices/{device_id}/presence``."""
    route = edge.own_route(f"{domain}/devices/{device_id}/presence")
    payload = {
        "state": state.state,
        "since": iso(state.since),
        "sessionEpoch": state.epoch,
        "reason": state.reason,
    }
    return edge.admit(route, orjson.dumps(payload), now, retain=True)


def refusal_record(edge: Edge, domain: str, device_id: str, facts: Mapping[str, object], now: int) -> Record:
    """A message on ``{domain}/devices/{device_id}/errors``: what was refused, why, and what to do."""
    route = edge.own_route(f"{domain}/devices/{device_id}/errors")
    shown = {name: dead_letter.printable(fact) if isinstance(fact, str) else fact for name, fact in facts.items()}
    return edge.admit(route, orjson.dumps(shown), now)


def missed_record(edge: Edge, device_id: str, gap: Gap, now: int) -> Record:
    """A message on the device's errors topic: which messages it can no longer get."""
    domain = gap.partition.domain
    return refusal_record(edge, domain, device_id, {"error": MESSAGES_MISSED, "missed": gap_facts(gap)}, now)


def oversized_letter(edge: Edge, principal: Principal, packet: Oversized, error: IotSphereError, now: int) -> Record:
    """The dead letter of a message whose payload streamed past: size and hash of all of it, and its head."""
    letter = dead_letter.describe(
        error,
        stage="ingress",
        topic=packet.topic.decode(),
        source=principal.name,
        payload=packet.head,
        received_at=now,
    )
    letter = replace(letter, size=packet.size, sha256=packet.sha256)
    domain = principal.domain
    route = edge.own_route(f"{domain}/system/dead-letters")
    return edge.admit(route, dead_letter.encode(letter), now)
