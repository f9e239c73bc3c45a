"""What can happen to a shadow: pure functions from one shadow to the next, each with its answer.

``at`` is the gateway's time in ms. A change that changes nothing returns the same shadow; what it has to remember
all the same (a request's id, the time of a confirmed leaf, a delivery) makes a new shadow of the same version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from .errors import MessageRefused, NotFound
from .merge_patch import effect, leaves, merge, same, unmet
from .pointer import ancestors
from .shadow import (
    APPLIED,
    EXPIRED,
    OPEN,
    PENDING,
    RECENT_REQUESTS,
    REFUSED,
    SUPERSEDED,
    Answer,
    Mark,
    Shadow,
    Wish,
    check_limits,
    version_conflict,
)

# Who has made a version that nobody asked for at a door.
GATEWAY: Final = "gateway"
DATABASE: Final = "database"
OPENED_NOW: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A request to change what is desired.

    ``version``: the one that it was made for; None: any. ``repeatable``: somebody may send ``message_id`` again.
    ``expires``: by pointer, for the leaves at or inside it; ``expires_at``: for all others of the patch (ms, 0 = never).
    ``behind``: for a deletion, where the log ends, as epoch and offset by partition: what lies before it was sent before.
    """

    patch: Mapping[str, Any]
    author: str
    message_id: str = ""
    repeatable: bool = True
    version: int | None = None
    expires: Mapping[str, int] = field(default_factory=dict)
    expires_at: int = 0
    behind: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def expiry_of(self, pointer: str) -> int:
        """When the wish for a leaf expires. The nearest stated pointer counts."""
        for place in (pointer, *ancestors(pointer)):
            if place in self.expires:
                return self.expires[place]
        return self.expires_at


def desire(shadow: Shadow, wanted: Wanted, at: int) -> tuple[Shadow, Answer]:
    """Merge a patch into what is desired.

    A request that was here before gets its first answer, and does nothing. Asking for a value that is desired already
    changes nothing, unless the wish was refused or has expired (then it is a new wish), or states another expiry.
    Raises VersionConflict, and MessageRefused: expired, payload_too_large.
    """
    if wanted.repeatable and wanted.message_id and (known := shadow.answer_to(wanted.message_id)) is not None:
        return shadow, known
    if wanted.version is not None and wanted.version != shadow.version:
        raise version_conflict(shadow, wanted.version)
    if any(0 < time <= at for time in (wanted.expires_at, *wanted.expires.values())):
        raise MessageRefused("a desired value would expire at once: state a time in the future", code="expired")
    merged = merge(shadow.desired, wanted.patch)
    changed = effect(shadow.desired, merged)
    version = shadow.version + 1
    wishes, replaced = dict(shadow.wishes), {}
    for pointer in changed.gone:
        if (old := wishes.pop(pointer, None)) is not None:
            replaced[pointer] = old
    for pointer in changed.put.keys() | (leaves(wanted.patch).keys() & wishes.keys()):
        wish = wishes.get(pointer)
        expires_at = wanted.expiry_of(pointer)
        if pointer not in changed.put and wish is not None and not _is_renewed(wish, expires_at):
            continue
        if wish is not None:
            replaced[pointer] = wish
        wishes[pointer] = Wish(PENDING, at, version, wanted.author, OPENED_NOW, expires_at)
    if merged is shadow.desired and not replaced:
        answer = Answer(shadow.version, shadow.sequence, changed=False)
        return _remembered(shadow, wanted, answer), answer
    after = settle(shadow, replace(revive(shadow, at), desired=merged, wishes=wishes), at)
    after = advance(after, at, wanted.author, wanted.message_id, replaced)
    check_limits(shadow, after)
    answer = Answer(after.version, after.sequence, changed=True)
    return _remembered(after, wanted, answer), answer


def _is_renewed(wish: Wish, expires_at: int) -> bool:
    return wish.status in (REFUSED, EXPIRED) or bool(expires_at and expires_at != wish.expires_at)


def _remembered(shadow: Shadow, wanted: Wanted, answer: Answer) -> Shadow:
    if not wanted.repeatable or not wanted.message_id:
        return shadow
    return replace(shadow, recent=(*shadow.recent, (wanted.message_id, answer))[-RECENT_REQUESTS:])


def deliver(shadow: Shadow, sequence: int, status: str, at: int) -> Shadow:
    """Take the evidence that the device was sent a delta (``delivered``), or has acknowledged it (``acknowledged``).

    The version stays: neither what is reported nor what is desired has changed. Evidence never takes a wish back.
    """
    rank = OPEN.index(status)
    moved = {
        pointer: wish._replace(status=status, since=at)
        for pointer, wish in shadow.wishes.items()
        if wish.status in OPEN and OPEN.index(wish.status) < rank and wish.sequence <= sequence
    }
    return replace(shadow, wishes={**shadow.wishes, **moved}) if moved else shadow


def expire(shadow: Shadow, at: int) -> tuple[Shadow, Answer]:
    """Let the open wishes end whose time has come."""
    over = {
        pointer: wish._replace(status=EXPIRED, since=at)
        for pointer, wish in shadow.wishes.items()
        if 0 < wish.expires_at <= at and wish.status in OPEN
    }
    if not over:
        return shadow, Answer(shadow.version, shadow.sequence, changed=False)
    after = settle(shadow, replace(shadow, wishes={**shadow.wishes, **over}), at)
    after = advance(after, at, GATEWAY, "", {})
    return after, Answer(after.version, after.sequence, changed=True)


def delete(shadow: Shadow, wanted: Wanted, at: int) -> tuple[Shadow, Answer]:
    """Empty a shadow and mark it as deleted; the patch of ``wanted`` does not count.

    Versions go on from there if it is ever made anew, and reports from before, by their places in the log, are superseded.
    Raises NotFound and VersionConflict.
    """
    if wanted.message_id and (known := shadow.answer_to(wanted.message_id)) is not None:
        return shadow, known
    if not shadow.exists:
        raise NotFound
    if wanted.version is not None and wanted.version != shadow.version:
        raise version_conflict(shadow, wanted.version)
    nothing: dict[str, Any] = {"reported": {}, "desired": {}, "marks": {}, "removed": {}, "wishes": {}}
    buried = {**shadow.buried, **wanted.behind}
    emptied = replace(shadow, **nothing, buried=buried, deleted=True, deleted_at=at)
    after = advance(settle(shadow, emptied, at), at, wanted.author, wanted.message_id, shadow.wishes)
    answer = Answer(after.version, after.sequence, changed=True)
    return _remembered(after, wanted, answer), answer


def adopt(known: Shadow | None, found: Shadow, at: int) -> Shadow:
    """Make a proper version of what somebody wrote with the tools of the database.

    ``known``: the shadow before that; None where nobody knows: then every leaf counts as written. The limits do not
    hold here, for it is written already. Versions never go back, whatever was written there.
    """
    base = Shadow(key=found.key) if known is None else known
    found = replace(
        found,
        version=max(found.version, base.version),
        sequence=max(found.sequence, base.sequence),
        deleted_at=max(found.deleted_at, base.deleted_at),
        folded={**base.folded, **found.folded},
        buried={**base.buried, **found.buried},
    )
    version = found.version + 1
    reported, desired = effect(base.reported, found.reported), effect(base.desired, found.desired)
    marks = {pointer: mark for pointer, mark in base.marks.items() if pointer not in reported.gone}
    marks.update((pointer, Mark(at, version, DATABASE)) for pointer in reported.put)
    wishes = {pointer: wish for pointer, wish in base.wishes.items() if pointer not in desired.gone}
    replaced = {pointer: base.wishes[pointer] for pointer in (*desired.gone, *desired.put) if pointer in base.wishes}
    wishes.update((pointer, Wish(PENDING, at, version, DATABASE, OPENED_NOW)) for pointer in desired.put)
    before = replace(found, reported=base.reported, desired=base.desired, wishes=base.wishes)
    changed = replace(revive(found, at), marks=marks, wishes=wishes)
    return advance(settle(before, changed, at), at, DATABASE, "", replaced)


def revive(shadow: Shadow, at: int) -> Shadow:
    """The shadow as one that is there."""
    return shadow if shadow.exists else replace(shadow, created_at=at, deleted=False)


def settle(before: Shadow, after: Shadow, at: int) -> Shadow:
    """Bring the wishes in line with what is reported, and count the delta if it has become another one."""
    differing = unmet(after.desired, after.reported)
    wishes = dict(after.wishes)
    for pointer in differing.keys() - wishes.keys():  # somebody wrote it with the tools of the database
        wishes[pointer] = Wish(PENDING, at, before.version + 1, DATABASE, OPENED_NOW)
    for pointer, wish in wishes.items():
        if pointer not in differing:
            if wish.status != APPLIED:
                wishes[pointer] = wish._replace(status=APPLIED, since=at, reason="")
        elif wish.status == APPLIED:
            over = 0 < wish.expires_at <= at
            wishes[pointer] = wish._replace(status=EXPIRED if over else PENDING, since=at, sequence=OPENED_NOW)
    was = before.open_leaves()
    now = {pointer: value for pointer, value in differing.items() if wishes[pointer].status in OPEN}
    sequence = before.sequence if same(was, now) else before.sequence + 1
    for pointer, wish in wishes.items():
        if wish.sequence == OPENED_NOW:
            wishes[pointer] = wish._replace(sequence=sequence)
    return replace(after, wishes=wishes, sequence=sequence)


def advance(after: Shadow, at: int, author: str, cause: str, replaced: Mapping[str, Wish], **more: Any) -> Shadow:
    """The next version, made at ``at`` (never earlier than the last one). ``more``: further fields to set."""
    return replace(
        after,
        version=after.version + 1,
        author=author,
        cause=cause,
        updated_at=max(at, after.updated_at),
        superseded={
            pointer: wish._replace(status=SUPERSEDED, since=at) if wish.status in OPEN else wish
            for pointer, wish in replaced.items()
        },
        **more,
    )
