"""Shadows: what a device last reported, what is desired of it, and what of that is still open, as one document.

Times are ms since 1970. Places inside ``reported`` and ``desired`` are JSON Pointers (RFC 6901), patches are merge patches
(RFC 7396). A shadow is never altered; shadow_changes.py makes the next one of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from .errors import MessageRefused, VersionConflict
from .merge_patch import unmet
from .pointer import nested
from .topic import is_device_id, is_domain, is_shadow_name

MAX_SHADOW_BYTES: Final = 64 * 1024
MAX_SHADOW_DEPTH: Final = 16
MAX_SHADOW_LEAVES: Final = 1_000
MAX_POINTER_BYTES: Final = 128 * 1024
MAX_REMOVED: Final = 256
MAX_REASON_CHARACTERS: Final = 200
RECENT_REQUESTS: Final = 32

PENDING: Final = "pending"
DELIVERED: Final = "delivered"
ACKNOWLEDGED: Final = "acknowledged"
APPLIED: Final = "applied"
REFUSED: Final = "refused"
EXPIRED: Final = "expired"
SUPERSEDED: Final = "superseded"

# In the order in which evidence takes a wish forward. What is not open is not in the delta.
OPEN: Final = (PENDING, DELIVERED, ACKNOWLEDGED)
WISH_STATES: Final = (*OPEN, APPLIED, REFUSED, EXPIRED, SUPERSEDED)


_JSON: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


class ShadowKey(NamedTuple):
    """Whose shadow it is, and which: ``name`` is empty for a device's main one."""

    domain: str
    device: str
    name: str = ""

    @property
    def text(self) -> str:
        """The key of its document."""
        return "/".join(self) if self.name else f"{self.domain}/{self.device}"

    def topic(self, kind: str) -> str:
        """Its topic for ``reported``, ``desired``, ``delta`` or ``document``."""
        middle = f"shadow/{self.name}" if self.name else "shadow"
        return f"{self.domain}/devices/{self.device}/{middle}/{kind}"


def is_shadow_key(text: str) -> bool:
    """Tell whether a text is the key of a shadow's document; people can write documents under any key."""
    domain, _, rest = text.partition("/")
    device, slash, name = rest.partition("/")
    return is_domain(domain) and is_device_id(device) and (is_shadow_name(name) if slash else True)


def shadow_key(text: str) -> ShadowKey:
    """The key that a document's key stands for. Raises ValueError."""
    if not is_shadow_key(text):
        raise ValueError(f"{text[:80]!a} is no key of a shadow")
    domain, device, *name = text.split("/")
    return ShadowKey(domain, device, *name)


def shadow_of_topic(topic: str) -> tuple[ShadowKey, str]:
    """Which shadow a topic of the shadow channel belongs to, and the topic's kind, such as ``reported``."""
    domain, _, device, _, *name, kind = topic.split("/")
    return ShadowKey(domain, device, *name), kind


class Mark(NamedTuple):
    """When a reported leaf got its value, or was last confirmed to have it; with which version, and by whom."""

    at: int
    version: int
    author: str


class Wish(NamedTuple):
    """What became of one desired leaf.

    ``since``: when it came into this state. ``version``, ``author``: who asked, and which version that made.
    ``sequence``: the first delta that holds it. ``expires_at``: 0 = never.
    """

    status: str
    since: int
    version: int
    author: str
    sequence: int
    expires_at: int = 0
    reason: str = ""


class Answer(NamedTuple):
    """What a change did: the version and delta sequence after it, and whether it made that version.

    ``outcome``: ``applied``, or ``superseded`` when something newer stands in its way.
    """

    version: int
    sequence: int
    changed: bool
    outcome: str = APPLIED


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """One shadow. ``version`` 0: there was never one. ``version`` grows by one with each accepted change, without holes,
    beyond deletion too; ``sequence`` grows by one whenever the delta becomes another one.

    ``marks``: of each reported leaf. ``removed``: of leaves that are gone, so that an older report does not bring them
    back. ``wishes``: of each desired leaf. ``superseded``: the wishes that this version replaced. ``recent``: answers to
    the last requests by message id. ``folded``: per log partition, the place up to which its reports are in here;
    ``buried``: the place up to which they were sent before the shadow was deleted.
    ``timed``: the device has stated times of its own, so that reports may come late.
    """

    key: ShadowKey
    version: int = 0
    sequence: int = 0
    reported: dict[str, Any] = field(default_factory=dict)
    desired: dict[str, Any] = field(default_factory=dict)
    marks: Mapping[str, Mark] = field(default_factory=dict)
    removed: Mapping[str, Mark] = field(default_factory=dict)
    wishes: Mapping[str, Wish] = field(default_factory=dict)
    superseded: Mapping[str, Wish] = field(default_factory=dict)
    recent: tuple[tuple[str, Answer], ...] = ()
    folded: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    buried: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    timed: bool = False
    author: str = ""
    cause: str = ""
    created_at: int = 0
    updated_at: int = 0
    deleted_at: int = 0
    deleted: bool = False

    @property
    def exists(self) -> bool:
        """False before the first change, and after deletion."""
        return self.version > 0 and not self.deleted

    @property
    def delta(self) -> dict[str, Any]:
        """The desired leaves that the device has yet to take on. Merged into ``reported``, it gives what is desired."""
        return nested(self.open_leaves())

    def open_leaves(self) -> dict[str, Any]:
        """The delta, leaf by leaf: what differs from ``reported``, less what was refused or has expired."""
        wishes = self.wishes
        return {
            pointer: value
            for pointer, value in unmet(self.desired, self.reported).items()
            if (wish := wishes.get(pointer)) is None or wish.status not in (REFUSED, EXPIRED)
        }

    @property
    def due(self) -> int:
        """When the next open wish expires; 0 = none does."""
        times = (wish.expires_at for wish in self.wishes.values() if wish.expires_at and wish.status in OPEN)
        return min(times, default=0)

    def answer_to(self, message_id: str) -> Answer | None:
        """What a request was answered, if it was here before."""
        return next((answer for known, answer in self.recent if known == message_id), None)


def version_conflict(shadow: Shadow, expected: int) -> VersionConflict:
    """The error for a change that was made for another version."""
    return VersionConflict(
        f"the shadow is at version {shadow.version}, not {expected}: look at its state, and decide anew",
        version=shadow.version,
        state={"reported": shadow.reported, "desired": shadow.desired},
    )


def check_depth(patch: object) -> None:
    """Raise MessageRefused (json_too_deep) for a patch that nests deeper than a shadow may."""
    level = [patch]
    for _ in range(MAX_SHADOW_DEPTH):
        items = (
            item for one in level for item in (one.values() if type(one) is dict else one if type(one) is list else ())
        )
        level = [item for item in items if type(item) is dict or type(item) is list]
        if not level:
            return
    raise MessageRefused(
        f"the shadow would nest deeper than {MAX_SHADOW_DEPTH} levels: flatten it", code="json_too_deep"
    )


def check_limits(before: Shadow, after: Shadow) -> None:
    """Raise MessageRefused (payload_too_large) when a change makes a shadow larger than it may be.

    A shadow that is too large already, since somebody wrote it with the tools of the database, may still shrink.
    """
    leaves = len(after.marks) + len(after.wishes)
    if leaves > MAX_SHADOW_LEAVES and leaves > len(before.marks) + len(before.wishes):
        raise _too_large("leaves", leaves, MAX_SHADOW_LEAVES)
    size = _size(after)
    if size > MAX_SHADOW_BYTES and size > _size(before):
        raise _too_large("bytes as JSON", size, MAX_SHADOW_BYTES)
    paths = _paths(after)
    if paths > MAX_POINTER_BYTES and paths > _paths(before):
        raise _too_large("bytes of paths", paths, MAX_POINTER_BYTES)


def json_size(value: object) -> int:
    """The bytes of a value as JSON."""
    text = _JSON.encode(value)
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _size(shadow: Shadow) -> int:
    return json_size(shadow.reported) + json_size(shadow.desired)


def _paths(shadow: Shadow) -> int:
    """The bytes of all pointers; where their characters show that they are few, those times four."""
    most = 4 * (sum(map(len, shadow.marks)) + sum(map(len, shadow.wishes)))
    if most <= MAX_POINTER_BYTES:
        return most
    return sum(len(pointer.encode()) for places in (shadow.marks, shadow.wishes) for pointer in places)


def _too_large(what: str, size: int, limit: int) -> MessageRefused:
    return MessageRefused(
        f"the shadow would have {size} {what}, {limit} are allowed: remove keys with null, or use a named shadow",
        code="payload_too_large",
        size=size,
        limit=limit,
    )
