"""Alerts that an earlier run raised and nobody remembers: they are cleared by whoever hears of the device again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from iotsphere.drivers.spark.alerts import COLLECTION, left_open, tell
from iotsphere.drivers.spark.jobs import Announcement, Run

from .stores import Embedded, Mongo

NOON = datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC)


@pytest.fixture(params=["mongo", "embedded"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Mongo | Embedded:
    return Mongo(request.getfixturevalue("mongo_url")) if request.param == "mongo" else Embedded(str(tmp_path))


def change(device: str, what: str = "raised", metric: str | None = None, **more: Any) -> dict[str, Any]:
    about = {"domain": "iotsphere", "device_id": device, "metric": metric, "kind": "jump" if metric else "silence"}
    return {**about, "change": what, "raised_at": NOON, "at": NOON, "offset": 7, "score": 8.5} | more


def met(device: str, minutes: float, metric: str | None = None, raised_at: datetime | None = None) -> dict[str, Any]:
    at = NOON + timedelta(minutes=minutes)
    return {"domain": "iotsphere", "device_id": device, "metric": metric, "at": at, "raised_at": raised_at}


def runs(store: Mongo | Embedded, told: list[Announcement]) -> Run:
    def announce(some: Iterable[Announcement]) -> int:
        told.extend(some)
        return len(told)

    return Run({}, "app", True, Path(), store.database, announce)


def states(store: Mongo | Embedded) -> dict[str, str]:
    return {key: one["state"] for key, one in store.read(COLLECTION).items()}


def nobody() -> Iterable[Mapping[str, Any]]:
    raise AssertionError("nothing stands open, so nobody needs to be asked for")


def test_what_was_raised_before_it_was_heard_of_again_is_over(store: Mongo | Embedded) -> None:
    told: list[Announcement] = []
    run = runs(store, told)
    tell(run, [change("a"), change("b"), change("c", metric="t"), change("d", metric="t")])
    heard = [met("a", 30), met("b", 0), met("c", 30, "t"), met("d", 30, "u"), met("e", 30)]
    over = left_open(run, lambda: heard)
    counts = tell(run, over)
    assert (counts["raised"], counts["cleared"]) == (0, 2)
    found = store.read(COLLECTION)
    assert {key.split("/")[1]: one["state"] for key, one in found.items()} == {
        "a": "cleared", "b": "raised", "c": "cleared", "d": "raised",
    }  # fmt: skip
    cleared = next(one for key, one in found.items() if key.startswith("iotsphere/a/"))
    assert (cleared["at"], cleared["score"], cleared["kind"]) == ("2026-03-01T12:30:00.123000Z", 8.5, "silence") or (
        cleared["at"] == "2026-03-01T12:30:00.123Z"
    )
    # The very alert that was raised: its name is told again with the other state.
    names = [one.key.rpartition("/")[0] for one in told]
    assert sorted(names[4:]) == sorted(key for key, state in states(store).items() if state == "cleared")
    assert {one.payload["state"] for one in told[4:]} == {"cleared"}


def test_an_alert_that_it_has_itself_stays(store: Mongo | Embedded) -> None:
    run = runs(store, [])
    tell(run, [change("a", metric="t")])
    assert left_open(run, lambda: [met("a", 30, "t", raised_at=NOON)]) == []
    (other,) = left_open(run, lambda: [met("a", 30, "t", raised_at=NOON + timedelta(minutes=1))])
    assert (other["change"], other["device_id"], other["metric"]) == ("cleared", "a", "t")


def test_where_nothing_stands_open_nobody_is_asked_for(store: Mongo | Embedded) -> None:
    run = runs(store, [])
    assert left_open(run, nobody) == []
    tell(run, [change("a"), change("a", "cleared", at=NOON + timedelta(minutes=5))])
    assert left_open(run, nobody) == []
