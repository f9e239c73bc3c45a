"""What a device reports, folded into its shadow: in the order of the log, and by the device's time where it states one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from .merge_patch import effect, leaves, merge, without_newer
from .pointer import ancestors, find, holds
from .shadow import (
    MAX_POINTER_BYTES,
    MAX_REASON_CHARACTERS,
    MAX_REMOVED,
    OPEN,
    REFUSED,
    SUPERSEDED,
    Answer,
    Mark,
    Shadow,
    Wish,
    check_limits,
    version_conflict,
)
from .shadow_changes import advance, revive, settle

# How much later than the gateway's own time a device's may be, see adapters/timestamps.py.
AHEAD_MS: Final = 5 * 60 * 1000


class Place(NamedTuple):
    """Where in the log a report lies; ``partition``: its channel and number."""

    partition: str
    epoch: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a device says of itself.

    ``at``: the time of what it saw. ``stated``: that time is the device's own, so leaves that are newer stay as they are.
    ``refused``: a reason for each desired place that it will not take on, of the delta
    ``sequence`` and those before it (None: of all). ``version``: the one that it must be at; None: any.
    ``logged_at``: when it came into the log (ms since 1970).
    """

    patch: Mapping[str, Any]
    at: int
    author: str
    stated: bool = False
    message_id: str = ""
    version: int | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    sequence: int | None = None
    place: Place | None = None
    logged_at: int = 0


def report(shadow: Shadow, said: Report, at: int) -> tuple[Shadow, Answer]:
    """Fold a report in. Equal values change nothing.

    A report that lies before the last one of its partition that changed something was folded in then, and does nothing:
    so a slice of the log may be folded again. Raises VersionConflict, and MessageRefused (payload_too_large).
    """
    standing = Answer(shadow.version, shadow.sequence, changed=False)
    if _is_before(said.place, shadow.folded):
        return shadow, standing
    if said.version is not None and said.version != shadow.version:
        raise version_conflict(shadow, said.version)
    if _is_before(said.place, shadow.buried):
        return shadow, standing._replace(outcome=SUPERSEDED)
    timed = shadow.timed or said.stated
    patch = _timely(shadow, said, at + AHEAD_MS) if said.stated else said.patch
    if said.patch and not patch and not said.refused:
        standing = standing._replace(outcome=SUPERSEDED)
    version = shadow.version + 1
    merged = merge(shadow.reported, patch)
    mark = Mark(said.at, version, said.author)
    marks, removed = (
        _confirmed(shadow, patch, said.patch, mark, at + AHEAD_MS) if timed else (shadow.marks, shadow.removed)
    )
    if merged is not shadow.reported:
        changed = effect(shadow.reported, merged)
        marks = {**marks, **dict.fromkeys(changed.put, mark)}
        for pointer in changed.gone:
            marks.pop(pointer, None)
        if timed:
            # A leaf that has become an object with keys was not removed.
            gone = [pointer for pointer in changed.gone if type(find(merged, pointer)) is not dict]
            removed = _bounded({**removed, **dict.fromkeys(gone, mark)}, changed.put)
    refused = _refused(shadow, said, at)
    folded = _folded(shadow, said.place)
    state: dict[str, Any] = {"reported": merged, "marks": marks, "removed": removed, "timed": timed, "folded": folded}
    if merged is shadow.reported and not refused:
        if marks is shadow.marks and removed is shadow.removed:
            return shadow, standing
        return replace(shadow, **state), standing
    if not shadow.exists:
        shadow = revive(shadow, at)
    # Where nothing is desired of what has changed, the wishes and the delta stay as they are.
    if refused or not shadow.desired.keys().isdisjoint(patch):
        settled = settle(shadow, replace(shadow, wishes={**shadow.wishes, **refused}, reported=merged), at)
        state.update(wishes=settled.wishes, sequence=settled.sequence)
    after = advance(shadow, at, said.author, said.message_id, {}, **state)
    check_limits(shadow, after)
    return after, Answer(after.version, after.sequence, changed=True)


def _is_before(place: Place | None, places: Mapping[str, tuple[int, int]]) -> bool:
    """Whether a place lies at or before the one that is known of its partition."""
    if place is None or (known := places.get(place.partition)) is None:
        return False
    # Places of another epoch are folded anew: they may be of another log, and a suffix of reports that is folded a
    # second time in its order ends in the same state.
    return known[0] == place.epoch and place.offset <= known[1]


def _folded(shadow: Shadow, place: Place | None) -> Mapping[str, tuple[int, int]]:
    return shadow.folded if place is None else {**shadow.folded, place.partition: (place.epoch, place.offset)}


def _timely(shadow: Shadow, said: Report, believed: int) -> Mapping[str, Any]:
    """The patch less what is newer in the shadow. ``believed``: what claims a later time has it of a clock that ran ahead."""
    newer = {pointer for pointer, mark in shadow.marks.items() if said.at < mark.at <= believed}
    gone = {pointer for pointer, mark in shadow.removed.items() if said.at < mark.at <= believed}
    if not newer and not gone:
        return said.patch
    # What an object without keys is given does not touch it.
    empty = {pointer for pointer in newer if find(shadow.reported, pointer) == {}}
    around = frozenset(place for pointer in newer | gone for place in ancestors(pointer)) | empty
    older = frozenset(shadow.marks.keys() - newer)
    kept: Mapping[str, Any] = without_newer(said.patch, frozenset((newer - empty) | gone), around, older)
    return kept


def _confirmed(
    shadow: Shadow, patch: Mapping[str, Any], whole: Mapping[str, Any], mark: Mark, believed: int
) -> tuple[Mapping[str, Mark], Mapping[str, Mark]]:
    """The marks with the later time of leaves that were said to be as they are; the same objects if there are none.

    Without this, a report that was late would win over a newer one that had found nothing to change. ``patch``: what of
    the ``whole`` one is not superseded. A removal counts for all that is older, also where something newer stays.
    """
    held = {
        pointer: known._replace(at=mark.at)
        for pointer in leaves(patch)
        if (known := shadow.marks.get(pointer)) is not None and not mark.at <= known.at <= believed
    }
    absent = {
        pointer: mark
        for pointer, value in leaves(whole).items()
        if value is None
        and ((there := shadow.marks.get(pointer)) is None or there.at > mark.at)
        and ((gone := shadow.removed.get(pointer)) is None or not mark.at <= gone.at <= believed)
    }
    return (
        {**shadow.marks, **held} if held else shadow.marks,
        _bounded({**shadow.removed, **absent}, {}) if absent else shadow.removed,
    )


def _bounded(removed: dict[str, Mark], put: Mapping[str, Any]) -> dict[str, Mark]:
    """What is remembered of removed leaves: the latest ones, and none that has a value again."""
    for pointer, value in put.items():
        if value != {}:
            removed.pop(pointer, None)
    if len(removed) > MAX_REMOVED or sum(map(len, removed)) > MAX_POINTER_BYTES // 4:
        room = MAX_POINTER_BYTES // 4
        kept: dict[str, Mark] = {}
        for pointer, mark in sorted(removed.items(), key=lambda item: item[1].at, reverse=True)[:MAX_REMOVED]:
            room -= len(pointer)
            if room < 0:
                break
            kept[pointer] = mark
        return kept
    return removed


def _refused(shadow: Shadow, said: Report, at: int) -> dict[str, Wish]:
    """The open wishes that the device will not carry out: those at or inside the places that it gives reasons for."""
    found: dict[str, Wish] = {}
    for place, reason in said.refused.items():
        for pointer, wish in shadow.wishes.items():
            if not holds(place, pointer) or wish.status not in OPEN:
                continue
            if said.sequence is None or wish.sequence <= said.sequence:
                found[pointer] = wish._replace(status=REFUSED, since=at, reason=reason[:MAX_REASON_CHARACTERS])
    return found
