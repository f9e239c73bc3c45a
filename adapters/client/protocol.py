"""The requests and answers of the client protocol `iotsphere.v1.json`, as docs/reference/asyncapi.yaml describes them.

Every request carries a ``ref`` and gets exactly one answer with the same ``ref``: ``ok`` or ``error``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from math import ceil
from typing import Annotated, Any, Final, Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from ...entities.errors import IotSphereError, MessageRefused, RequestInvalid, VersionConflict
from ...entities.position import Gap
from ..envelope import browser_safe_json
from ..payload import read_json
from ..strict_json import decode, key_not_allowed, parse, survey, too_deep
from ..timestamps import iso

SUBPROTOCOL: Final = "iotsphere.v1.json"
MAX_REQUEST_BYTES: Final = 256 * 1024 + 16 * 1024
MAX_FILTERS: Final = 100

_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T|[0-9]{9,15}\Z")
_ENVELOPE_KEYS: Final = {"metadata", "payload"}
MAX_REF_CHARACTERS: Final = 128
Ref = int | Annotated[str, Field(max_length=MAX_REF_CHARACTERS)]


class _Request(BaseModel):
    """``ref`` is chosen by the client and comes back in the answer."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)

    ref: Ref


class Subscribe(_Request):
    """Listen to one or more filters; with ``group``, share them with the other members as a work queue."""

    type: Literal["subscribe"]
    filters: list[str] = Field(min_length=1, max_length=MAX_FILTERS)
    start: str = Field(default="live", alias="from")
    policy: Literal["complete", "latest"] = "complete"
    max_rate: float = Field(default=0.0, ge=0, le=1e6, alias="maxRate")
    speed: float | None = Field(default=None, ge=0, le=1_000, description="Play the past; 0 stands still")
    cursors: Literal["frame", "message"] = "frame"
    group: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$")
    credit: int = Field(default=100, ge=1, le=1000, description="Unacknowledged deliveries at once, with a group")


class Unsubscribe(_Request):
    """End a subscription."""

    type: Literal["unsubscribe"]
    subscription: str


class Play(_Request):
    """Go on with a rewind at another speed; 0 stands still."""

    type: Literal["play"]
    subscription: str
    speed: float = Field(ge=0, le=1_000)


class Publish(_Request):
    """Publish a payload, or a whole message; answered once it is durable."""

    type: Literal["publish"]
    topic: str
    payload: Any = None
    message: dict[str, Any] | None = None
    message_id: str | None = Field(default=None, alias="messageId")
    correlation_id: str | None = Field(default=None, alias="correlationId")
    expires_at: str | None = Field(default=None, alias="expiresAt")
    retain: bool = False

    @model_validator(mode="after")
    def _one_content(self) -> Self:
        if ("payload" in self.model_fields_set) == ("message" in self.model_fields_set):
            raise ValueError("send either payload or message")
        if "message" in self.model_fields_set and (self.message is None or self.message.keys() != _ENVELOPE_KEYS):
            raise ValueError("message is {metadata, payload}; send anything else as payload")
        return self


class Command(_Request):
    """Ask a device to do something; with ``wait`` (seconds), answered when it is over or that time has passed."""

    type: Literal["command"]
    device: str
    payload: dict[str, Any]
    message_id: str | None = Field(default=None, alias="messageId")
    idempotency_key: str | None = Field(default=None, alias="idempotencyKey", min_length=1, max_length=128)
    expires_at: str | None = Field(default=None, alias="expiresAt")
    timeout: float = Field(default=0.0, ge=0, le=86_400, description="Seconds that the device has for it")
    wait: float = Field(default=0.0, ge=0, le=300)


class Cancel(_Request):
    """Take a command back that its device has not been sent."""

    type: Literal["cancel"]
    command: str


class Shadow(_Request):
    """Read a shadow (as it is, ``asOf`` a time, or at a ``version``), or change it (``desired``, or ``delete``)."""

    type: Literal["shadow"]
    device: str
    name: str = ""
    as_of: str | None = Field(default=None, alias="asOf")
    version: int | None = Field(default=None, ge=0)
    desired: dict[str, Any] | None = None
    expires: dict[str, str] | None = None
    expires_at: str | None = Field(default=None, alias="expiresAt")
    delete: bool = False
    message_id: str | None = Field(default=None, alias="messageId")


class Read(_Request):
    """Mark a notification of the user as read."""

    type: Literal["read"]
    notification: str
    user: str | None = None


class Acknowledge(_Request):
    """Say of deliveries of a group that they are done, or (``retryIn``, ms) that they shall come again.

    With ``counted`` false, coming again is no further attempt: the fault lies with the member, not with the message.
    """

    type: Literal["ack"]
    subscription: str
    deliveries: list[str] = Field(min_length=1, max_length=1_000)
    retry_in: int | None = Field(default=None, ge=0, le=3_600_000, alias="retryIn")
    counted: bool = True


class Auth(_Request):
    """Show a token: the first one within five seconds, a fresh one of the same subject at any time."""

    type: Literal["auth"]
    token: str


class Ping(_Request):
    """Ask for a sign of life; answered with the time of the gateway."""

    type: Literal["ping"]


StateRequest = Command | Cancel | Shadow | Read
Request = Subscribe | Unsubscribe | Play | Publish | Command | Cancel | Shadow | Read | Acknowledge | Auth | Ping
_REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="type")])


def parse_request(raw: bytes) -> Request:
    """Read one request.

    Raises RequestInvalid, or MessageRefused for JSON that is not strict. Both carry the request's ``ref``, and its
    ``topic`` if it was to publish, as facts where they could be read all the same.
    """
    if len(raw) > MAX_REQUEST_BYTES:
        raise RequestInvalid(f"a request may hold {MAX_REQUEST_BYTES} bytes; split it")
    if not raw.lstrip().startswith(b"{"):
        decode(raw)
        raise RequestInvalid('a request is a JSON object such as {"type":"ping","ref":1}')
    try:
        document = _strict(raw)
    except MessageRefused as error:
        error.facts.update(_leniently(raw))
        raise
    try:
        return _REQUEST.validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "type"
        fault = f"{where}: {first['msg']}"
        if "ref" in first["loc"]:
            fault = f"ref: send an integer, or a text of up to {MAX_REF_CHARACTERS} characters"
        raise RequestInvalid(f"{fault}; see docs/reference/asyncapi.yaml", ref=_ref_of(document)) from error


def _strict(raw: bytes) -> dict[str, object]:
    try:
        value, _ = read_json(raw)
    except MessageRefused as error:
        if error.code != "payload_too_large":
            raise
        # The request around a payload may be larger than a payload may be; the edge judges the payload itself.
        document = parse(decode(raw))
        assert isinstance(document, dict)  # it begins with a brace
        deep, bad_key = survey(document)
        if deep:
            raise too_deep() from error
        if bad_key is not None:
            raise key_not_allowed(bad_key) from error
        return document
    return value


def _leniently(raw: bytes) -> dict[str, object]:
    """What can be told of a request that is no strict JSON, for its answer."""
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}
    facts: dict[str, object] = {"ref": _ref_of(document)}
    if document.get("type") == "publish" and isinstance(document.get("topic"), str):
        facts["topic"] = document["topic"]
    return facts


def _ref_of(document: dict[str, object]) -> int | str | None:
    ref = document.get("ref")
    if isinstance(ref, str):
        return ref[:MAX_REF_CHARACTERS]
    return ref if isinstance(ref, int) and not isinstance(ref, bool) else None


def parse_time(text: str) -> int | None:
    """Milliseconds since 1970 for an ISO-8601 time or a number of milliseconds; None when the text is neither.

    Raises RequestInvalid when it looks like a time and is none.
    """
    if not _TIME.match(text):
        return None
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise RequestInvalid(f"{text!a} is no time; write it as 2026-01-31T12:00:00Z") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1000))


def ok(ref: int | str | None, **facts: object) -> bytes:
    """The answer to a request that was carried out."""
    return orjson.dumps({"type": "ok", "ref": ref, **facts})


def authenticated(ref: int | str | None, until: int, now: int) -> bytes:
    """The answer to a token: when it ends (ms, 0 = never), and how long that is, since a client's clock may be wrong."""
    return ok(ref, expiresAt=iso(until), expiresIn=max(until - now, 0)) if until else ok(ref, expiresAt=None)


def decided(ref: int | str, facts: Mapping[str, object], exact: bool) -> bytes:
    """The answer to a request about state. Unless ``exact``, integers beyond 2^53 are sent as texts."""
    return b'{"type":"ok","ref":%b,%b' % (orjson.dumps(ref), _shown(facts, exact)[1:])


def failed(ref: int | str | None, error: IotSphereError, exact: bool = True) -> bytes:
    """The answer to a request that was not. ``retryAfter``: ms to wait, where it is known; ``exact``: as in ``decided``."""
    facts: dict[str, object] = {"code": error.code, "retry": error.retry, "message": error.message}
    after = error.facts.get("retry_after")
    if isinstance(after, int | float):
        facts["retryAfter"] = ceil(after * 1000)
    if isinstance(error, VersionConflict):  # what stands there, for whoever lost a race
        current = {"version": error.facts["version"], "state": error.facts["state"]}
        facts["current"] = orjson.Fragment(_shown(current, exact))
    return orjson.dumps({"type": "error", "ref": ref, **facts})


def _shown(facts: Mapping[str, object], exact: bool) -> bytes:
    text = orjson.dumps(facts)
    return text if exact else browser_safe_json(text)


def notice(kind: str, **facts: object) -> bytes:
    """Something that the client did not ask for: ``gap``, ``lagging``, ``clock``, ``ended`` or ``closing``."""
    return orjson.dumps({"type": kind, **facts})


def gap_facts(gap: Gap) -> dict[str, object]:
    """A gap as JSON: which offsets of which partition are missing, how many, and why."""
    return {
        "partition": f"{gap.partition.channel}/{gap.partition.number}",
        "first": gap.first,
        "last": gap.last,
        "count": gap.missing,
        "reason": gap.reason,
    }
