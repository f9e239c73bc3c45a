"""From the error tree to HTTP: a status, the headers that go with it, and one form of body."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import orjson

from ...entities import errors
from ...entities.errors import IotSphereError

# By class, the most special first; by code where one class stands for several statuses.
_STATUS: Final[tuple[tuple[type[IotSphereError], int], ...]] = (
    (errors.Unauthenticated, 401),
    (errors.NotFound, 404),
    (errors.Forbidden, 403),
    (errors.UnknownDomain, 404),
    (errors.Conflict, 409),
    (errors.Refused, 422),
    (errors.Limited, 429),
    (errors.Unavailable, 503),
)
_BY_CODE: Final = {
    "payload_too_large": 413,
    "body_too_large": 413,
    "headers_too_large": 431,
    "content_encoding_refused": 415,
    "content_type_refused": 415,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "bad_request": 400,
    "dead_letter_truncated": 409,
    "document_newer": 409,
}


def status_of(error: IotSphereError) -> int:
    """The HTTP status of an error."""
    known = _BY_CODE.get(error.code)
    if known is not None:
        return known
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def headers_of(error: IotSphereError) -> dict[str, str]:
    """What a client needs to know beside the body: how to authenticate, when to come again."""
    headers = {}
    if isinstance(error, errors.Unauthenticated):
        headers["www-authenticate"] = 'Bearer realm="iotsphere"'
    wait = error.facts.get("retry_after")
    if isinstance(wait, int | float):
        headers["retry-after"] = str(max(1, math.ceil(wait)))
    elif error.retry:
        headers["retry-after"] = "1"
    return headers


def body_of(error: IotSphereError, **more: object) -> bytes:
    """The body: ``{"error": {"code", "message", "retry"}}``."""
    return orjson.dumps({"error": facts_of(error), **more})


def facts_of(error: IotSphereError) -> Mapping[str, object]:
    """The error as JSON."""
    facts: dict[str, object] = {"code": error.code, "message": error.message, "retry": error.retry}
    if isinstance(error, errors.VersionConflict):  # what stands there, for whoever lost a race
        facts["current"] = {"version": error.facts["version"], "state": error.facts["state"]}
    return facts
