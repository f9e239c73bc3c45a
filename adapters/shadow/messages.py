"""What the gateway says about a shadow after a change: on ``shadow/desired``, ``shadow/delta`` and ``shadow/document``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...entities.merge_patch import diff
from ...entities.message import MAX_PAYLOAD_BYTES
from ...entities.shadow import Mark, Shadow, Wish, json_size
from ..timestamps import iso

# Room for the rest of a message, and for numbers that grow when they are written anew.
DOCUMENT_BYTES: Final = MAX_PAYLOAD_BYTES - 16 * 1024


def tell(before: Shadow, after: Shadow) -> list[tuple[str, dict[str, Any]]]:
    """The messages of one version, as (kind of topic, payload), in the order in which they are to be sent.

    Where only evidence was taken, the document is told once more with the same version and the new wishes; what the
    gateway remembers for itself is not told at all. A state that was changed by hand is told once it is a version.
    """
    if after.version == before.version:
        by_hand = (after.reported, after.desired) != (before.reported, before.desired)
        return [("document", document_payload(after))] if after.wishes != before.wishes and not by_hand else []
    messages: list[tuple[str, dict[str, Any]]] = []
    if patch := diff(before.desired, after.desired):
        payload = {"desired": after.desired, "patch": patch, "version": after.version, "author": after.author}
        messages.append(("desired", payload))
    if after.sequence != before.sequence:
        messages.append(("delta", {**delta_payload(after), "author": after.author}))
    messages.append(("document", document_payload(after)))
    return messages


def delta_payload(shadow: Shadow) -> dict[str, Any]:
    """What the device has yet to take on; empty when it has caught up."""
    return {"delta": shadow.delta, "sequence": shadow.sequence, "version": shadow.version}


def document_payload(shadow: Shadow) -> dict[str, Any]:
    """The whole shadow. Marks, and then wishes, are left out where a message could not hold them all."""
    payload: dict[str, Any] = {
        "reported": shadow.reported,
        "desired": shadow.desired,
        "delta": shadow.delta,
        "version": shadow.version,
        "sequence": shadow.sequence,
        "author": shadow.author,
        "cause": shadow.cause or None,
        "updatedAt": iso(shadow.updated_at),
    }
    if shadow.deleted:
        payload["deleted"] = True
    details: list[tuple[str, Mapping[str, Any]]] = [
        ("wishes", {pointer: _wish(wish) for pointer, wish in shadow.wishes.items()}),
        ("superseded", {pointer: _wish(wish) for pointer, wish in shadow.superseded.items()}),
        ("marks", {pointer: _mark(mark) for pointer, mark in shadow.marks.items()}),
    ]
    room = DOCUMENT_BYTES - json_size(payload)
    left_out = []
    for name, detail in details:
        size = json_size(detail)
        if size > room:
            left_out.append(name)
        else:
            room -= size
            payload[name] = detail
    if left_out:
        payload["leftOut"] = left_out
    return payload


def _mark(mark: Mark) -> dict[str, Any]:
    return {"at": iso(mark.at), "version": mark.version, "author": mark.author}


def _wish(wish: Wish) -> dict[str, Any]:
    told: dict[str, Any] = {
        "status": wish.status,
        "since": iso(wish.since),
        "version": wish.version,
        "author": wish.author,
        "sequence": wish.sequence,
    }
    if wish.expires_at:
        told["expiresAt"] = iso(wish.expires_at)
    if wish.reason:
        told["reason"] = wish.reason
    return told
