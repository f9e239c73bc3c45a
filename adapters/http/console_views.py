"""From principals and standings to the models that the console reads."""

from __future__ import annotations

from typing import Any, Final

import orjson

from ...entities.errors import MessageRefused
from ...entities.message import Entry
from ...entities.principal import Principal
from ...use_cases.overview import OverviewPage, Standing
from ..envelope import payload_of
from ..timestamps import iso
from .models_console import NewestBody, OverviewBody, PresenceBody, SessionBody, StandingBody

MAX_SHOWN_TEXT: Final = 64
MAX_READ_BYTES: Final = 4 * 1024


def session(principal: Principal) -> SessionBody:
    """Who asks."""
    return SessionBody(
        kind=principal.kind,
        name=principal.name,
        domain=principal.domain,
        grants=[f"{grant.action}:{grant.filter.text}" for grant in principal.grants],
        roles=sorted(principal.roles),
        expires_at=iso(principal.expires_at) if principal.expires_at else None,
    )


def overview(page: OverviewPage) -> OverviewBody:
    """A page of the fleet."""
    return OverviewBody(devices=[_standing(one) for one in page.devices], after=page.after)


def _standing(found: Standing) -> StandingBody:
    device = found.device
    return StandingBody(
        device_id=device.device_id,
        registered_at=iso(device.registered_at),
        labels=dict(found.labels),
        presence=_presence(found.presence) if found.presence is not None else None,
        newest=_newest(found.newest) if found.newest is not None else None,
    )


def _presence(entry: Entry) -> PresenceBody:
    said = _payload(entry)
    state, since, reason = (said.get(name) for name in ("state", "since", "reason"))
    return PresenceBody(
        state=state if isinstance(state, str) else "unknown",
        since=since if isinstance(since, str) else None,
        reason=reason if isinstance(reason, str) else None,
    )


def _newest(entry: Entry) -> NewestBody:
    said = _payload(entry)
    value, unit = said.get("value"), said.get("unit")
    if isinstance(value, str):
        value = value[:MAX_SHOWN_TEXT]
    return NewestBody(
        metric=entry.record.topic.partition("/telemetry")[2].removeprefix("/"),
        at=iso(entry.appended_at),
        value=value if isinstance(value, int | float | str | bool) else None,
        unit=unit[:MAX_SHOWN_TEXT] if isinstance(unit, str) else None,
    )


def _payload(entry: Entry) -> dict[str, Any]:
    """The payload where it is a small object, else nothing: this is a glance, and lists have a thousand rows."""
    try:
        raw = payload_of(entry.record.body)
    except MessageRefused:
        return {}
    if len(raw) > MAX_READ_BYTES:
        return {}
    said = orjson.loads(raw)
    return said if isinstance(said, dict) else {}
