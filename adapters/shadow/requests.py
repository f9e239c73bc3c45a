"""Requests on ``shadow/desired``: from a message to the change that it asks for, and the decision back as facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from ...entities.errors import Forbidden, MessageRefused
from ...entities.merge_patch import leaves
from ...entities.message import Record
from ...entities.pointer import holds, keys_of
from ...entities.principal import Principal
from ...entities.shadow import check_depth, shadow_of_topic
from ...entities.shadow_changes import Wanted
from ...entities.topic import Topic
from ...use_cases.shadow.shadows import Shadows
from ..envelope import payload_of
from ..strict_json import key_not_allowed, survey
from ..timestamps import read_time

_DESIRED: Final = frozenset(("desired", "version", "expires", "expiresAt"))
# The edge puts a sender's time there that it does not believe.
_ADDED: Final = frozenset(("observedAt", "deviceTime"))
_DELETE: Final = frozenset(("delete", "version"))


class ShadowRequests:
    """Decides requests at once, under the shadow's lock. ``handles`` and the call are the same behind every door."""

    def __init__(self, shadows: Shadows) -> None:
        self._shadows = shadows

    @staticmethod
    def handles(topic: Topic) -> bool:
        """Tell whether messages on this topic come here instead of into the log."""
        return topic.channel == "shadow" and not topic.text.endswith("/reported")

    async def __call__(self, principal: Principal, record: Record) -> Mapping[str, object]:
        """Carry a request out; returns ``version``, ``deltaSequence`` and ``changed``.

        Raises Forbidden for the topics that the gateway alone speaks on, MessageRefused, VersionConflict, NotFound,
        RateLimited and Unavailable.
        """
        key, kind = shadow_of_topic(record.topic)
        if kind != "desired":
            raise Forbidden(f"{record.topic!a} is told by the gateway: ask for changes on {key.topic('desired')!a}")
        payload = orjson.loads(payload_of(record.body))
        wanted = read_wanted(payload, principal.name, record.message_id, repeatable=not record.minted)
        if "delete" in payload:
            answer = await self._shadows.delete(key, wanted)
        else:
            answer = await self._shadows.desire(key, wanted)
        return {"version": answer.version, "deltaSequence": answer.sequence, "changed": answer.changed}


def read_wanted(payload: Mapping[str, Any], author: str, message_id: str = "", *, repeatable: bool = True) -> Wanted:
    """What a payload asks for: ``{"desired": patch, "version"?, "expires"?, "expiresAt"?}``, or ``{"delete": true, …}``.

    Raises MessageRefused: schema_violation, timestamp_invalid, json_too_deep or key_not_allowed.
    """
    if "delete" in payload:
        check_keys(payload, _DELETE, '{"delete": true}')
        if payload["delete"] is not True:
            raise schema_violation('"delete" must be true')
        return Wanted(
            patch={}, author=author, message_id=message_id, repeatable=repeatable, version=version_of(payload)
        )
    check_keys(payload, _DESIRED, '{"desired": {"interval": 5}}')
    patch = read_patch(payload, "desired")
    expires = payload.get("expires") or {}
    if type(expires) is not dict:
        raise schema_violation('"expires" must be an object such as {"/interval": "2026-01-01T00:00:00.000Z"}')
    asked = leaves(patch)
    for place in expires:
        read_pointer(place, "expires")
        if not any(holds(place, pointer) and value is not None for pointer, value in asked.items()):
            raise schema_violation(f'"expires" names {place[:80]!a}, which this request does not set')
    return Wanted(
        patch=patch,
        author=author,
        message_id=message_id,
        repeatable=repeatable,
        version=version_of(payload),
        expires={place: _time(value) for place, value in expires.items()},
        expires_at=_time(payload["expiresAt"]) if payload.get("expiresAt") is not None else 0,
    )


def read_patch(payload: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The merge patch under a name. Raises MessageRefused: schema_violation, json_too_deep or key_not_allowed."""
    patch = payload.get(name)
    if type(patch) is not dict:
        raise schema_violation(f'"{name}" must be an object; set a key to null to remove it')
    _, bad_key = survey(patch)
    if bad_key is not None:
        raise key_not_allowed(bad_key)
    check_depth(patch)
    return patch


def check_keys(payload: Mapping[str, Any], known: frozenset[str], example: str) -> None:
    """Raise MessageRefused (schema_violation) for a payload with other keys; a bare patch is the usual mistake."""
    if unknown := payload.keys() - known - _ADDED:
        raise schema_violation(f"{min(unknown)[:40]!a} does not belong there: send it as in {example}")


def version_of(payload: Mapping[str, Any], name: str = "version") -> int | None:
    """A version or sequence that the payload states. Raises MessageRefused (schema_violation)."""
    version = payload.get(name)
    if version is None or (type(version) is int and version >= 0):
        return version
    raise schema_violation(f'"{name}" must be a whole number of 0 or more, or left out')


def read_pointer(text: str, name: str) -> str:
    """A JSON Pointer. Raises MessageRefused (schema_violation)."""
    try:
        keys_of(text)
    except ValueError as error:
        raise schema_violation(f'"{name}" takes JSON Pointers such as "/interval", not {text[:80]!a}') from error
    return text


def schema_violation(why: str) -> MessageRefused:
    """The error for a payload of another form."""
    return MessageRefused(f"the payload does not fit a shadow: {why}", code="schema_violation")


def _time(value: object) -> int:
    reading = read_time(value)
    if reading is None or reading.time <= 0:
        raise MessageRefused(
            "an expiry is no time: send ISO-8601 in UTC such as 2026-01-01T00:00:00.000Z, or leave it out",
            code="timestamp_invalid",
        )
    return reading.time
