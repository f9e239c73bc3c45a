"""Publishing over HTTP: one or many messages in a request, each accepted or refused by itself, answered when durable."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ...entities.errors import Forbidden, IotSphereError, LogUnavailable, MessageRefused, RequestInvalid, TopicInvalid
from ...entities.message import Record
from ...entities.position import Position
from ...entities.principal import Principal
from ...entities.topic import action_on
from ...use_cases.access.rate_limit import RateLimit
from ...use_cases.ports.clock import Clock
from ...use_cases.publish import MessagePublishUseCase
from ..edge import Edge
from ..requests import Requests
from . import raw_json
from .failures import facts_of
from .queries import read_moment
from .views import position_text

MAX_MESSAGES: Final = 1_000
ANSWER_WITHIN_S: Final = 15.0
_PLAIN: Final = frozenset(("topic", "payload", "message_id", "correlation_id", "expires_at", "retain"))
_ENVELOPE: Final = frozenset(("metadata", "payload", "retain"))


class Publication(NamedTuple):
    """One message of a request; ``payload`` is its raw text, or the raw text of a whole envelope."""

    topic: str
    payload: bytes
    message_id: str | None = None
    correlation_id: str | None = None
    expires_at: int = 0
    retain: bool = False


class Outcome(NamedTuple):
    """What became of one message: a place in the log, what was decided, or the error that its dead letter tells of."""

    record: Record
    position: Position | None
    duplicate: bool = False
    error: IotSphereError | None = None
    decided: Mapping[str, object] | None = None


def read_publications(raw: bytes) -> tuple[list[Publication], bool]:
    """The messages of a request body, and whether it was a list: ``{"messages": […]}`` or one message alone.

    Raises RequestInvalid when the request itself is wrong; nothing of it is published then.
    """
    found = raw_json.members(raw, "the body")
    if found.keys() != {"messages"}:
        return [_publication(found, raw, "the message")], False
    pieces = raw_json.items(found["messages"], "messages")
    if not 1 <= len(pieces) <= MAX_MESSAGES:
        raise RequestInvalid(f"messages must hold 1 to {MAX_MESSAGES} messages; split the request")
    return [
        _publication(raw_json.members(piece, f"messages[{index}]"), piece, f"messages[{index}]")
        for index, piece in enumerate(pieces)
    ], True


def _publication(found: dict[str, bytes], raw: bytes, what: str) -> Publication:
    enveloped = "metadata" in found
    unknown = found.keys() - (_ENVELOPE if enveloped else _PLAIN)
    if unknown:
        raise RequestInvalid(f"{what} has the unknown key {min(unknown)[:40]!a}; put your own keys into the payload")
    if "payload" not in found or not ("topic" in found or enveloped):
        raise RequestInvalid(f"{what} needs topic and payload, or metadata and payload")
    retain = raw_json.flag(found["retain"], f"{what}.retain") if "retain" in found else False
    if enveloped:
        metadata = raw_json.members(found["metadata"], f"{what}.metadata")
        if "topic" not in metadata:
            raise RequestInvalid(f"{what}.metadata needs a topic")
        topic = raw_json.text(metadata["topic"], f"{what}.metadata.topic")
        if "retain" in found:
            raw = b'{"metadata":%b,"payload":%b}' % (found["metadata"], found["payload"])
        return Publication(topic, raw, retain=retain)
    return Publication(
        raw_json.text(found["topic"], f"{what}.topic"),
        found["payload"],
        _optional(found, "message_id", what),
        _optional(found, "correlation_id", what),
        _expiry(_optional(found, "expires_at", what), what),
        retain,
    )


def _optional(found: dict[str, bytes], name: str, what: str) -> str | None:
    raw = found.get(name)
    return None if raw is None or raw == b"null" else raw_json.text(raw, f"{what}.{name}")


def _expiry(text: str | None, what: str) -> int:
    return 0 if text is None else max(1, read_moment(text, f"{what}.expires_at"))


class HttpPublishing:
    """Takes the messages of one request through the edge and the log."""

    def __init__(
        self,
        edge: Edge,
        publish: MessagePublishUseCase,
        clock: Clock,
        rates: RateLimit,
        requests: Requests | None = None,
    ) -> None:
        self._requests = requests
        self._edge = edge
        self._publish = publish
        self._clock = clock
        self._rates = rates

    async def __call__(self, principal: Principal, publications: Sequence[Publication]) -> list[Outcome]:
        """Publish; returns when everything is durable, the dead letters of what was refused as well.

        Raises RateLimited, LogFull and LogUnavailable; repeating is safe for messages that carry a message id.
        """
        size = sum(len(publication.payload) for publication in publications)
        self._rates.check(principal, len(publications), size, asyncio.get_running_loop().time())
        if self._publish.congested:
            raise LogUnavailable("the log cannot keep up at the moment; send again in a second")
        outcomes = [await self._admit(principal, publication) for publication in publications]
        waiting = [index for index, outcome in enumerate(outcomes) if outcome.decided is None]
        if not waiting:
            return outcomes
        try:
            records = [outcomes[index].record for index in waiting]
            async with asyncio.timeout(ANSWER_WITHIN_S):
                appended = await self._publish(records)
        except TimeoutError as error:
            raise LogUnavailable(
                "the log did not answer in time; what was sent may or may not be in it: send it again with its message id"
            ) from error
        for place, index in enumerate(waiting):
            if outcomes[index].error is None:
                outcomes[index] = outcomes[index]._replace(
                    position=appended.positions[place], duplicate=place in appended.duplicates
                )
        return outcomes

    async def _admit(self, principal: Principal, publication: Publication) -> Outcome:
        now = self._clock.now()
        topic = publication.topic
        try:
            route = self._edge.route(principal, topic, action_on(topic))
            record = self._edge.admit(
                route,
                publication.payload,
                now,
                retain=publication.retain,
                message_id=publication.message_id,
                correlation_id=publication.correlation_id,
                expires_at=publication.expires_at,
            )
        except (TopicInvalid, MessageRefused, Forbidden) as error:
            return self._buried(principal, publication, now, error)
        if self._requests is None or not self._requests.handles(route.topic):
            return Outcome(record, None)
        try:
            return Outcome(record, None, decided=await self._requests(principal, record))
        except MessageRefused as error:
            return self._buried(principal, publication, now, error)
        except IotSphereError as error:  # decided against: the caller is told, and nothing is kept
            return Outcome(record, None, error=error, decided={})

    def _buried(self, principal: Principal, publication: Publication, now: int, error: IotSphereError) -> Outcome:
        error.facts.setdefault("message_id", publication.message_id)
        letter = self._edge.dead_letter(principal, publication.topic, publication.payload, now, error)
        return Outcome(letter, None, error=error)


def outcome_facts(outcome: Outcome) -> dict[str, object]:
    """An outcome as JSON."""
    record = outcome.record
    if outcome.decided is not None:
        told = outcome.decided if outcome.error is None else {"error": facts_of(outcome.error)}
        return {"message_id": record.message_id, **told}
    if outcome.error is not None or outcome.position is None:
        return {"dead_letter": record.message_id, "error": facts_of(outcome.error or LogUnavailable("not appended"))}
    return {
        "message_id": record.message_id,
        "position": position_text(record.partition, outcome.position),
        "duplicate": outcome.duplicate,
    }
