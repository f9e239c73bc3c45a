"""Wills between the wire, where they come with CONNECT, and the log, where they are messages like all others."""

from __future__ import annotations

import secrets
from typing import Final

from ...entities.errors import IotSphereError, MessageRefused
from ...entities.message import Record
from ...entities.principal import Principal, parse_grant
from ...use_cases.session.wills import Will
from ..claims import check_id
from ..edge import Edge
from ..message_id import MessageIds
from . import packets as p
from .properties import NONE, WILL, decode_properties, encode_properties
from .stated import MESSAGE_ID, check_format, stated

MAX_CONTENT_TYPE: Final = 256
_IDS = MessageIds()


def check_will(will: p.Will) -> None:
    """Raise MessageRefused for properties that no publication could have: it would be kept, and in the end refused.

    payload_too_large, or schema_violation for a message id that is none. What the payload is comes out when it is due.
    """
    says = stated(will.properties, 0)
    check_id(says.message_id, "the message id of the will")
    if says.content_type is not None and len(says.content_type) > MAX_CONTENT_TYPE:
        raise MessageRefused(
            f"the content type of the will has more than {MAX_CONTENT_TYPE} characters: name a known one",
            code="payload_too_large",
        )


def will_of(principal: Principal, will: p.Will, expiry: int, now: int) -> Will:
    """The will of a connection. ``expiry``: seconds that its session outlives it; ``now``: ms."""
    return Will(
        secrets.token_hex(8),
        principal.domain,
        principal.kind,
        principal.name,
        will.topic,
        will.payload,
        will.qos << 1 | will.retain,
        encode_properties(will.properties),
        will.properties.user_property(MESSAGE_ID) or _IDS.mint(now),
        will.properties.will_delay_interval or 0,
        expiry,
    )


def will_records(edge: Edge, will: Will, now: int) -> list[Record]:
    """The will as a record; as its dead letter when the edge does not take it; none when it says nothing.

    That the client may publish there was checked when it connected.
    """
    principal = Principal(
        will.kind, will.name, will.domain, (parse_grant(f"publish:{will.topic}", domain=will.domain),)
    )
    properties = decode_properties(will.properties, 0, len(will.properties), WILL)[0] if will.properties else NONE
    retain = bool(will.flags & p.RETAIN)
    try:
        route = edge.route(principal, will.topic)
        if not will.payload:
            taken = Record(route.partition, route.topic.text, will.message_id, b"", now, 0, True)
            return [taken] if retain else []
        check_format(properties, will.payload)
        says = stated(properties, now)
        return [
            edge.admit(
                route,
                will.payload,
                now,
                retain=retain,
                qos=will.flags >> 1 & 3,
                message_id=will.message_id,
                expires_at=says.expires_at,
                correlation_id=says.correlation_id,
                content_type=says.content_type,
                traceparent=says.traceparent,
                extra=says.extra,
            )
        ]
    except IotSphereError as error:
        return [edge.dead_letter(principal, will.topic, will.payload, now, error)]
