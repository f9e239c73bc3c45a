"""Changes of the database as messages: what happened to shadows, commands, notifications, preferences and more.

Each message's id follows from the change's token, so that a change which is told again is recognised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Final

import orjson

from ...entities.command import Command, command_of
from ...entities.documents import at_schema, whole
from ...entities.errors import DocumentNewer, IotSphereError
from ...entities.message import Record
from ...entities.shadow import shadow_key
from ...entities.shadow_changes import DATABASE
from ...entities.topic import is_user_id
from ...use_cases.ports.clock import Clock
from ...use_cases.ports.database import Body, Change
from ..alerts import gateway_principal
from ..command_messages import status_of
from ..edge import Edge
from ..message_id import derived, is_derived, is_message_id
from ..shadow.body import ShadowDocument, versions
from ..shadow.messages import tell
from ..timestamps import iso
from .mapping import ChangeMap, Row, source_of

OWN_CHANNELS: Final = frozenset(("shadow", "commands", "users", "system"))
UNKEPT: Final = -1  # the number of that alert among the messages of its change
_OWN: Final = frozenset(("shadows", "commands", "notifications", "preferences"))
OWN_NOTIFICATIONS: Final = source_of("notifications")

# What a document that people have written can make of code that reads it.
_UNREADABLE: Final = (IotSphereError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
_ENVELOPE: Final = frozenset(("metadata", "payload"))
_REMEDY: Final = "the document does not have the form that its collection has; mend or remove it"
_DAMAGE_REMEDY: Final = (
    "it was read with null or U+FFFD in that place, and is kept so when it changes; write what was meant"
)
_NEWER_REMEDY: Final = "run the newer version of the gateway here too; until then it tells of this document"
_MAPPED_REMEDY: Final = "mend the document, or the entry of its collection in the changes_file"


class DatabaseChangeAdapter:
    """A ``Teller``. ``domains``: of this gateway; ``mapped``: the rules for further collections.

    ``failed`` counts changes that could not be told, ``damaged`` those told with something replaced that is no JSON.
    """

    def __init__(
        self, edge: Edge, clock: Clock, domains: Callable[[], Sequence[str]], mapped: ChangeMap | None = None
    ) -> None:
        self._edge = edge
        self._clock = clock
        self._domains = domains
        self._mapped = mapped
        self._rows: dict[str, Callable[[Change], list[Row]]] = {
            "shadows": _shadow_rows,
            "commands": _command_rows,
            "notifications": _notification_rows,
            "preferences": _preference_rows,
        }
        if mapped is not None:
            self._rows.update((collection.name, mapped.rows) for collection in mapped.collections)
        self.failed = self.damaged = 0

    @property
    def channels(self) -> frozenset[str]:
        """Where the messages go."""
        return OWN_CHANNELS if self._mapped is None else OWN_CHANNELS | self._mapped.channels

    def may_be_own(self, message_id: str) -> bool:
        """Every id of a message from here is derived."""
        return is_derived(message_id)

    def records(self, change: Change) -> Sequence[Record]:
        """The messages of a change, in order. What a stranger wrote and cannot be told becomes an alert instead."""
        try:
            if change.after is not None and change.collection in _OWN:
                at_schema(change.after, "the document")
            rows = self._rows[change.collection](change)
            records = [self._record(change, number, row) for number, row in enumerate(rows)]
            return [*records, self._damage(change, len(rows))] if change.mended else records
        except _UNREADABLE as error:
            self.failed += 1
            mapped = self._mapped is not None and self._rows[change.collection] == self._mapped.rows
            remedy = _MAPPED_REMEDY if mapped else _REMEDY
            if isinstance(error, DocumentNewer):
                remedy = _NEWER_REMEDY
            return [self._alert(change, _facts("change_not_told", change, str(error), remedy))]

    def lost(self, since: int, until: int, told: int) -> Record:
        """The alert on the first domain's ``system/alerts``."""
        alert = {
            "alert": "history_lost",
            "since": iso(since) if since else None,
            "until": iso(until),
            "reconciled": told,
            "detail": "the database no longer knew what had changed; documents that differ were told as they are now",
        }
        # The same alert when a crash lets the same loss be found again.
        return self._alert(Change(f"lost/{since}", until, "quiet"), alert)

    def _damage(self, change: Change, number: int) -> Record:
        """The alert that a document holds what no message can; it was told with null or U+FFFD there."""
        self.damaged += 1
        return self._alert(
            change, _facts("document_damaged", change, f"it holds {change.mended}", _DAMAGE_REMEDY), number
        )

    def unkept(self, change: Change, reason: str) -> Record:
        """The alert that a shadow was written by hand in a way that cannot become a version of it."""
        return self._alert(change, _facts("version_not_kept", change, reason, _REMEDY), UNKEPT)

    def _alert(self, change: Change, facts: Mapping[str, object], number: int = 0) -> Record:
        """To the domain that the document's key names, if there is such a domain; else to the first one."""
        domains = self._domains()
        named = change.key.partition("/")[0]
        return self._record(change, number, Row(f"{named if named in domains else domains[0]}/system/alerts", facts))

    def _record(self, change: Change, number: int, row: Row) -> Record:
        sender = gateway_principal(row.topic.partition("/")[0])
        if row.source:
            sender = replace(sender, name=row.source)
        route = self._edge.route(sender, row.topic)
        digest = sha256(f"{change.token}\n{change.collection}\n{change.key}\n{number}".encode()).digest()
        content = row.payload
        if content.keys() == _ENVELOPE:  # a document that looks like one is not one
            content = {"metadata": {}, "payload": content}
        return self._edge.admit(
            route,
            orjson.dumps(content),
            self._clock.now(),
            retain=row.topic.endswith(("/document", "/preferences")),
            message_id=derived(digest[:16]),
            correlation_id=row.correlation if row.correlation and is_message_id(row.correlation) else None,
        )


def _facts(alert: str, change: Change, reason: str, remedy: str) -> dict[str, object]:
    return {
        "alert": alert,
        "collection": change.collection,
        "document": change.key,
        "reason": reason[:500],
        "remedy": remedy,
    }


def _shadow_rows(change: Change) -> list[Row]:
    """The messages of each version. What was changed by hand is told once it has become a version."""
    key = shadow_key(change.key)
    if change.after is None:
        return []
    form = ShadowDocument()
    before = form.read(key, change.before)
    rows: list[Row] = []
    for version in versions(change.before, change.after):
        after = form.read(key, version)
        told = tell(before, after)
        if told and after.author == DATABASE and told[0][0] != "desired":
            # The hand has changed what is desired before this version was made of it.
            told.insert(0, ("desired", {"desired": after.desired, "version": after.version}))
        author = after.author.rpartition("/")[2]
        rows += [Row(key.topic(kind), payload, after.cause or None, author) for kind, payload in told]
        before = after
    return rows


def _command_rows(change: Change) -> list[Row]:
    """A step in the life of a command; its removal after its time tells nobody anything."""
    if change.after is None:
        return []
    command = command_of(change.after)
    if command.key != change.key:
        raise ValueError(f"its domain and id belong under {command.key[:120]!a}")
    before = _readable_command(change.before) if change.before is not None else None
    if before is not None and replace(before, carrier=command.carrier) == command:
        return []  # who carries it to the device is nobody's business
    return [Row(f"{command.domain}/devices/{command.device}/commands/status", status_of(command), command.id)]


def _readable_command(body: Body) -> Command | None:
    try:
        return command_of(body)
    except (ValueError, DocumentNewer):  # it was none before somebody mended it
        return None


def _notification_rows(change: Change) -> list[Row]:
    """What came through the log has been heard; what somebody wrote into the database, and what was read, is told."""
    before, after = change.before, change.after
    if after is None:
        return []
    domain, user, notification_id = _places(change.key, 3)
    topic = f"{domain}/users/{_user(user)}/notifications"
    if before is not None and before.get("unread") and not after.get("unread"):
        read_at = after.get("readAt")
        content = {"id": notification_id, "read": True, "readAt": iso(read_at) if read_at else None}
    elif after.get("logged"):
        return []
    else:
        said = after.get("content") or {}
        if type(said) is not dict:
            raise ValueError("content is no object")
        content = {**said, "id": notification_id}
    return [Row(topic, content, None, OWN_NOTIFICATIONS)]


def _preference_rows(change: Change) -> list[Row]:
    domain, user = _places(change.key, 2)
    topic = f"{domain}/users/{_user(user)}/preferences"
    if change.after is None:
        return [Row(topic, {"preferences": {}, "version": 0, "deleted": True})]
    preferences, version = change.after.get("preferences"), change.after.get("version", 0)
    if type(preferences) is not dict or whole(version) is None:
        raise ValueError("preferences is no object, or version no whole number")
    facts = {"preferences": preferences, "version": whole(version)}
    return [Row(topic, facts, change.after.get("cause") or None)]


def _places(key: str, count: int) -> list[str]:
    places = key.split("/", count - 1)
    if len(places) != count:
        raise ValueError(f"{key[:80]!a} is no key of that collection: it has {count} parts")
    return places


def _user(user: str) -> str:
    if not is_user_id(user):
        raise ValueError(f"{user[:80]!a} is no user id")
    return user
