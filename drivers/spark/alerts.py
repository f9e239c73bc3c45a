"""Alerts as documents and as messages: each is raised once and cleared once, under a name that says what and when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from .jobs import Announcement, Counts, Run
from .sinks.documents import open_sink
from .sinks.kept import Kept, whole_ms

COLLECTION: Final = "alerts"
TOPIC: Final = "alerts"
RAISED: Final = "raised"


def tell(run: Run, changes: Iterable[Mapping[str, Any]]) -> Counts:
    """Keep changes of alerts in the database, then publish them; both may be repeated.

    A change: domain, device_id, change (raised or cleared), kind, raised_at, at, offset, and what else is to be told.
    Raises Unavailable.
    """
    ordered = sorted(changes, key=lambda change: (change["at"], change["change"] != RAISED))
    with open_sink(run.database) as sink:
        sink.write(COLLECTION, list({kept.key: kept for kept in map(_document, ordered)}.values()))
    counts = {
        "raised": sum(change["change"] == RAISED for change in ordered),
        "cleared": sum(change["change"] != RAISED for change in ordered),
    }
    # A batch run looks at the past, and nobody is to be woken for that.
    if run.following and run.publishing:
        return {**counts, "told": run.announce([_announcement(change) for change in ordered]) if ordered else 0}
    return {**counts, "told": 0, "untold": len(ordered)}


def _document(change: Mapping[str, Any]) -> Kept:
    """The alert as it is now: one document from raising to clearing."""
    raised = change["change"] == RAISED
    body = {**_facts(change), "state": "raised" if raised else "cleared"}
    # Of the two changes of an alert, clearing knows more, wherever in the log its cause lies.
    return Kept(_key(change), _moments(body), 0, 0 if raised else 1)


def _announcement(change: Mapping[str, Any]) -> Announcement:
    at = _utc(change["at"])
    payload = {name: _text(value) for name, value in {**_facts(change), "state": change["change"]}.items()}
    return Announcement(
        key=f"{_key(change)}/{change['change']}",
        topic=TOPIC,
        domain=change["domain"],
        payload=payload,
        at=int(at.timestamp() * 1_000),
    )


_NAMES: Final = {"device_id": "device", "raised_at": "raisedAt", "change": None, "offset": None}


def _facts(change: Mapping[str, Any]) -> dict[str, Any]:
    named = ((_NAMES.get(name, name), value) for name, value in change.items() if value is not None)
    return {name: value for name, value in named if name is not None}


def _key(change: Mapping[str, Any]) -> str:
    about = "/".join(str(change[name]) for name in ("domain", "device_id", "metric") if change.get(name) is not None)
    return f"{about}/{change['kind']}/{_utc(change['raised_at']):%Y-%m-%dT%H:%M:%S.%fZ}"


def _moments(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: whole_ms(_utc(value)) if isinstance(value, datetime) else value for name, value in body.items()}


def _text(value: Any) -> Any:
    return (
        _utc(value).isoformat(timespec="milliseconds").replace("+00:00", "Z") if isinstance(value, datetime) else value
    )


def _utc(moment: datetime) -> datetime:
    # Spark hands timestamps to Python without a zone, in that of the machine.
    return moment.astimezone(UTC)
