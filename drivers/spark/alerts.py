"""Alerts as documents and as messages: each is raised once and cleared once, under a name that says what and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from .jobs import Announcement, Counts, Run
from .sinks.documents import open_sink
from .sinks.kept import Kept, whole_ms

COLLECTION: Final = "alerts"
TOPIC: Final = "alerts"
RAISED: Final = "raised"
CLEARED: Final = "cleared"
# What a row says of something that a memory knew nothing of before: its alerts of earlier runs may stand open.
MET: Final = "met"


def left_open(run: Run, met: Callable[[], Iterable[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """What an earlier run raised and nobody remembers, cleared: after a batch run, or a checkpoint that was begun anew.

    ``met``: asked for only where alerts stand open; things that the run knew nothing of before: domain, device_id,
    metric (null where it is about the device), ``at``, when it was heard of last, and ``raised_at`` of the alert that
    it has now, or null. An alert that was raised before ``at`` and is not that one is over. Raises DatabaseUnavailable.
    """
    with open_sink(run.database) as sink:
        standing = sink.find(COLLECTION, RAISED)
    if not standing:
        return []
    known = {tuple(one.get(name) for name in _ABOUT): one for one in met()}
    over = []
    for key, body in standing:
        one = known.get((body["domain"], body["device"], body.get("metric")))
        raised = _moment(body["raisedAt"])
        if one is None or raised >= whole_ms(_utc(one["at"])):
            continue
        if one["raised_at"] is not None and raised == whole_ms(_utc(one["raised_at"])):
            continue
        facts = {name: value for name, value in body.items() if name not in _STORED}
        over.append(
            facts
            | {"key": key, "device_id": body["device"], "raised_at": raised, "change": CLEARED, "at": _utc(one["at"])}
        )
    return over


def tell(run: Run, changes: Iterable[Mapping[str, Any]]) -> Counts:
    """Keep changes of alerts in the database, then publish them; both may be repeated.

    A change: domain, device_id, change (raised or cleared), kind, raised_at, at, and what else is to be told; offset
    and key (that of its document, where it is known) are not.
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


_NAMES: Final = {"device_id": "device", "raised_at": "raisedAt", "change": None, "offset": None, "key": None}
_ABOUT: Final = ("domain", "device_id", "metric")
_STORED: Final = ("device", "raisedAt", "state", "firstOffset", "lastOffset", "schema")


def _facts(change: Mapping[str, Any]) -> dict[str, Any]:
    named = ((_NAMES.get(name, name), value) for name, value in change.items() if value is not None)
    return {name: value for name, value in named if name is not None}


def _key(change: Mapping[str, Any]) -> str:
    if "key" in change:
        return str(change["key"])
    about = "/".join(str(change[name]) for name in _ABOUT if change.get(name) is not None)
    return f"{about}/{change['kind']}/{_utc(change['raised_at']):%Y-%m-%dT%H:%M:%S.%fZ}"


def _moments(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: whole_ms(_utc(value)) if isinstance(value, datetime) else value for name, value in body.items()}


def _text(value: Any) -> Any:
    return (
        _utc(value).isoformat(timespec="milliseconds").replace("+00:00", "Z") if isinstance(value, datetime) else value
    )


def _moment(stored: datetime | str) -> datetime:
    return _utc(datetime.fromisoformat(stored) if isinstance(stored, str) else stored)


def _utc(moment: datetime) -> datetime:
    # Spark hands timestamps to Python without a zone, in that of the machine.
    return moment.astimezone(UTC)
