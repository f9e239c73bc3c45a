"""A shadow as a document that people can read: fields in plain words, and back whatever they have written there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ...entities.documents import MAX_WHOLE, at_schema, whole
from ...entities.merge_patch import diff, merge
from ...entities.pointer import is_pointer
from ...entities.shadow import WISH_STATES, Answer, Mark, Shadow, ShadowKey, Wish
from ...use_cases.ports.database import Body

SCHEMA: Final = 1

# What the gateway keeps for itself: readers of a version are not told of it.
_INTERNAL: Final = ("steps", "recent", "folded", "buried", "removed", "timed", "due")


class ShadowDocument:
    """The ``ShadowFormat`` of the collection ``shadows``."""

    def read(self, key: ShadowKey, body: Body | None) -> Shadow:
        """The shadow of a body; what does not fit is left out. None: a shadow of version 0. Raises DocumentNewer."""
        if body is None:
            return Shadow(key=key)
        body = at_schema(body, f"the shadow {key.text!a}", SCHEMA)
        return Shadow(
            key=key,
            version=_integer(body.get("version")),
            sequence=_integer(body.get("deltaSequence")),
            reported=_object(body.get("reported")),
            desired=_object(body.get("desired")),
            marks=_marks(body.get("marks")),
            removed=_marks(body.get("removed")),
            wishes=_wishes(body.get("wishes")),
            superseded=_wishes(body.get("superseded")),
            recent=_recent(body.get("recent")),
            folded=_places(body.get("folded")),
            buried=_places(body.get("buried")),
            timed=body.get("timed") is True,
            author=_text(body.get("author")),
            cause=_text(body.get("cause")),
            created_at=_integer(body.get("createdAt")),
            updated_at=_integer(body.get("updatedAt")),
            deleted_at=_integer(body.get("deletedAt")),
            deleted=body.get("deleted") is True,
        )

    def write(self, shadow: Shadow, steps: Sequence[Mapping[str, Any]] = ()) -> Body:
        """The body of a shadow."""
        body = _plain(shadow)
        body["marks"] = {pointer: list(mark) for pointer, mark in shadow.marks.items()}
        body["wishes"] = {pointer: _wish(wish) for pointer, wish in shadow.wishes.items()}
        body["superseded"] = {pointer: _wish(wish) for pointer, wish in shadow.superseded.items()}
        internal: dict[str, Any] = {
            "removed": {pointer: list(mark) for pointer, mark in shadow.removed.items()},
            "recent": [[message_id, *answer[:3]] for message_id, answer in shadow.recent],
            "folded": {partition: list(place) for partition, place in shadow.folded.items()},
            "buried": {partition: list(place) for partition, place in shadow.buried.items()},
            "timed": shadow.timed,
            "due": shadow.due,
            "steps": list(steps),
        }
        body.update((name, value) for name, value in internal.items() if value)
        return body

    def step(self, earlier: Shadow, later: Shadow) -> Mapping[str, Any]:
        """The merge patch from one shadow's body to the next one's, at the cost of what has changed."""
        patch = diff(_plain(earlier), _plain(later))
        for name, was, now, listed in (
            ("marks", earlier.marks, later.marks, list),
            ("wishes", earlier.wishes, later.wishes, _wish),
            ("superseded", earlier.superseded, later.superseded, _wish),
        ):
            if was is not now and (changed := _items_step(was, now, listed)):
                patch[name] = changed
        return patch


def told(body: Body) -> dict[str, Any]:
    """A body as readers are told of it: without what the gateway keeps for itself."""
    return {name: value for name, value in body.items() if name not in _INTERNAL}


def versions(before: Body | None, after: Body) -> list[dict[str, Any]]:
    """The bodies of all versions that one change has made, the last one being ``after``.

    ``before``: the body that was there; None: there was none, or it is not known: then only the last version can be
    told. A write that only took evidence makes one body of the same version as before.
    """
    steps = after.get("steps")
    if type(steps) is not list or not all(type(step) is dict for step in steps):
        steps = []
    form = ShadowDocument()
    base = form.read(
        ShadowKey(_text(after.get("domain")), _text(after.get("device")), _text(after.get("name"))), before
    )
    found: list[dict[str, Any]] = []
    if steps and base.version + len(steps) + 1 == after.get("version"):
        state = told(form.write(base))
        for step in steps:
            state = merge(state, step)
            found.append(state)
    return [*found, told(after)]


def history_body(key: ShadowKey, version: Body, expires: int) -> dict[str, Any]:
    """The body of one version in the collection ``shadow_history``. ``expires``: ms; when it may be removed."""
    form = ShadowDocument()
    body = told(form.write(form.read(key, version)))
    return {**body, "shadow": key.text, "at": body["updatedAt"], "expires": expires}


def _plain(shadow: Shadow) -> dict[str, Any]:
    key = shadow.key
    return {
        "schema": SCHEMA,
        "domain": key.domain,
        "device": key.device,
        "name": key.name,
        "version": shadow.version,
        "deltaSequence": shadow.sequence,
        "reported": shadow.reported,
        "desired": shadow.desired,
        "author": shadow.author,
        "cause": shadow.cause,
        "createdAt": shadow.created_at,
        "updatedAt": shadow.updated_at,
        "deleted": shadow.deleted,
        "deletedAt": shadow.deleted_at,
    }


def _items_step(was: Mapping[str, Any], now: Mapping[str, Any], listed: Callable[[Any], Any]) -> dict[str, Any]:
    """What has become of marks or wishes. Each replaces the one before as a whole, so no field of that may stay."""
    changed: dict[str, Any] = {}
    for pointer, item in now.items():
        had = was.get(pointer)
        if had is None:
            changed[pointer] = listed(item)
        elif had is not item and had != item:
            old, new = listed(had), listed(item)
            changed[pointer] = diff(old, new) if type(new) is dict else new
    changed.update((pointer, None) for pointer in was if pointer not in now)
    return changed


def _wish(wish: Wish) -> dict[str, Any]:
    body: dict[str, Any] = {
        "status": wish.status,
        "since": wish.since,
        "version": wish.version,
        "author": wish.author,
        "sequence": wish.sequence,
    }
    if wish.expires_at:
        body["expiresAt"] = wish.expires_at
    if wish.reason:
        body["reason"] = wish.reason
    return body


def _object(value: object) -> dict[str, Any]:
    return value if type(value) is dict else {}


def _integer(value: object) -> int:
    """A whole number that nobody has written in jest; what is none counts as 0."""
    if type(value) is int and 0 <= value <= MAX_WHOLE:
        return value
    return whole(value) or 0


def _text(value: object) -> str:
    return value if type(value) is str else ""


def _marks(value: object) -> dict[str, Mark]:
    return {
        pointer: Mark(_integer(mark[0]), _integer(mark[1]), _text(mark[2]))
        for pointer, mark in _object(value).items()
        if type(mark) is list and len(mark) == 3 and is_pointer(pointer)
    }


def _wishes(value: object) -> dict[str, Wish]:
    return {
        pointer: Wish(
            wish["status"],
            _integer(wish.get("since")),
            _integer(wish.get("version")),
            _text(wish.get("author")),
            _integer(wish.get("sequence")),
            _integer(wish.get("expiresAt")),
            _text(wish.get("reason")),
        )
        for pointer, wish in _object(value).items()
        if type(wish) is dict
        and type(wish.get("status")) is str
        and wish["status"] in WISH_STATES
        and is_pointer(pointer)
    }


def _recent(value: object) -> tuple[tuple[str, Answer], ...]:
    rows = value if type(value) is list else []
    return tuple(
        (_text(row[0]), Answer(_integer(row[1]), _integer(row[2]), row[3] is True))
        for row in rows
        if type(row) is list and len(row) == 4
    )


def _places(value: object) -> dict[str, tuple[int, int]]:
    return {
        partition: (_integer(place[0]), _integer(place[1]))
        for partition, place in _object(value).items()
        if type(place) is list and len(place) == 2
    }
