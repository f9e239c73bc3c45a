"""The requests and answers of the client protocol `iotsphere.v1.json`, as docs/reference/asyncapi.yaml describes them.

Every request carries a ``ref`` and gets exactly one answer with the same ``ref``: ``ok`` or ``error``.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ..entities.errors import IotSphereError, RequestInvalid
from ..entities.position import Gap
from .payload import canonical

SUBPROTOCOL: Final = "iotsphere.v1.json"
MAX_REQUEST_BYTES: Final = 256 * 1024 + 16 * 1024
MAX_FILTERS: Final = 100

_TIME = re.compile(r"\d{4}-\d\d-\d\dT|\d{9,}\Z")
Ref = Annotated[int | str, Field(description="Chosen by the client; comes back in the answer")]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)

    ref: Ref


class Subscribe(_Request):
    """Listen to one or more filters; with ``group``, share them with the other members as a work queue."""

    type: Literal["subscribe"]
    filters: list[str] = Field(min_length=1, max_length=MAX_FILTERS)
    start: str = Field(default="live", alias="from")
    policy: Literal["complete", "latest"] = "complete"
    max_rate: float = Field(default=0.0, ge=0, le=1e6, alias="maxRate")
    group: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$")
    credit: int = Field(default=100, ge=1, le=1000, description="Unacknowledged deliveries at once, with a group")


class Unsubscribe(_Request):
    """End a subscription."""

    type: Literal["unsubscribe"]
    subscription: str


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


class Acknowledge(_Request):
    """Say of deliveries of a group that they are done, or (``retryIn``, ms) that they shall come again."""

    type: Literal["ack"]
    subscription: str
    deliveries: list[str] = Field(min_length=1, max_length=1_000)
    retry_in: int | None = Field(default=None, ge=0, le=3_600_000, alias="retryIn")


class Auth(_Request):
    """Show a token: the first one within five seconds, a fresh one of the same subject at any time."""

    type: Literal["auth"]
    token: str


class Ping(_Request):
    """Ask for a sign of life; answered with the time of the gateway."""

    type: Literal["ping"]


Request = Subscribe | Unsubscribe | Publish | Acknowledge | Auth | Ping
_REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="type")])


def parse_request(raw: bytes) -> Request:
    """Read one request. Raises RequestInvalid, or MessageRefused for JSON that is not strict."""
    if len(raw) > MAX_REQUEST_BYTES:
        raise RequestInvalid(f"a request may hold {MAX_REQUEST_BYTES} bytes; split it")
    if not raw.lstrip().startswith(b"{"):
        raise RequestInvalid('a request is a JSON object such as {"type":"ping","ref":1}')
    document = orjson.loads(canonical(raw))
    try:
        return _REQUEST.validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "type"
        ref = document.get("ref")
        raise RequestInvalid(
            f"{where}: {first['msg']}; see docs/reference/asyncapi.yaml",
            ref=ref if isinstance(ref, int | str) and not isinstance(ref, bool) else None,
        ) from error


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
    return int(moment.timestamp() * 1000)


def ok(ref: int | str | None, **facts: object) -> bytes:
    """The answer to a request that was carried out."""
    return orjson.dumps({"type": "ok", "ref": ref, **facts})


def failed(ref: int | str | None, error: IotSphereError) -> bytes:
    """The answer to a request that was not."""
    return orjson.dumps(
        {"type": "error", "ref": ref, "code": error.code, "retry": error.retry, "message": error.message}
    )


def notice(kind: str, **facts: object) -> bytes:
    """Something that the client did not ask for: ``gap``, ``lagging``, ``ended`` or ``closing``."""
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
