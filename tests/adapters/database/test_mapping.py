"""Rules for further collections: which changes become messages, on which topics, and with what in them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.adapters.database.change_file import parse_changes
from iotsphere.adapters.database.mapping import Row
from iotsphere.entities.errors import IotSphereError
from iotsphere.entities.topic import parse_topic
from iotsphere.use_cases.ports.database import Change

DOMAINS = ("iotsphere", "plant-2")
ORDER = {"owner": "ann", "title": "Fan", "state": "open", "meta": {"room": 7, "floor": {"n": 1}, "urgent": True}}


def rows(text: str, change: Change) -> list[Row]:
    return parse_changes('[[map]]\ncollection = "orders"\n' + text, "changes.toml", DOMAINS).rows(change)


def change(
    after: dict[str, Any] | None, before: dict[str, Any] | None = None, key: str = "iotsphere/o1", kind: str = ""
) -> Change:
    found = kind or ("delete" if after is None else "insert" if before is None else "update")
    return Change("t", 1, found, "orders", key, 1, before, after)


ALL = 'topic = "{domain}/users/{owner}/notifications"\n'


def test_the_whole_document_with_its_key_and_what_happened() -> None:
    (row,) = rows(ALL, change(ORDER))
    assert row.topic == "iotsphere/users/ann/notifications"
    assert row.payload == {**ORDER, "_key": "o1", "_change": "insert"}
    assert (row.correlation, row.source) == (None, "database/orders")


def test_chosen_fields_keep_their_places() -> None:
    text = 'topic = "{domain}/devices/{meta.room}/telemetry/{_key}"\n'
    text += 'payload = ["title", "meta.floor.n", "meta.none.n", "none", "title.x", "_key"]\n'
    (row,) = rows(text, change(ORDER, key="plant-2/o1"))
    assert row.topic == "plant-2/devices/7/telemetry/o1"
    assert row.payload == {"title": "Fan", "meta": {"floor": {"n": 1}}, "_key": "o1"}


def test_a_removal_is_told_by_what_was_there_and_says_so() -> None:
    (row,) = rows(ALL + 'payload = ["title"]\n', change(None, ORDER))
    assert (row.topic, row.payload) == ("iotsphere/users/ann/notifications", {"title": "Fan", "_change": "delete"})


def test_kinds_and_conditions_choose() -> None:
    text = ALL + 'on = ["insert", "delete"]\nwhere = { state = "open", "meta.urgent" = true, "meta.room" = 7.0 }\n'
    assert len(rows(text, change(ORDER))) == 1
    assert rows(text, change({**ORDER, "state": "done"}, ORDER)) == []
    assert rows(text, change({**ORDER, "state": "done"})) == []
    assert rows(text, change({**ORDER, "meta": {"room": 7, "urgent": 1}})) == []
    assert rows(text, change({**ORDER, "meta": "urgent"})) == []
    assert len(rows(text, change(None, ORDER))) == 1
    assert rows(text, change(None, {**ORDER, "state": "done"})) == []


def test_conditions_may_be_nested_tables() -> None:
    text = ALL + "[map.where.meta]\nroom = 8\n"
    assert rows(text, change(ORDER)) == []
    assert len(rows(text, change({**ORDER, "meta": {"room": 8}}))) == 1


def test_an_update_that_changes_nothing_of_what_is_told_is_no_news() -> None:
    text = ALL + 'payload = ["title"]\n'
    assert rows(text, change({**ORDER, "state": "done"}, ORDER)) == []
    assert len(rows(text, change({**ORDER, "title": "Pump"}, ORDER))) == 1
    assert [row.topic for row in rows(text, change({**ORDER, "owner": "bob"}, ORDER))] == [
        "iotsphere/users/bob/notifications"
    ]
    assert len(rows(text, change(ORDER, {**ORDER, "owner": None}))) == 1  # could not be told before
    only_open = text + 'where = { state = "open" }\n'
    assert len(rows(only_open, change(ORDER, {**ORDER, "state": "draft"}))) == 1  # was not told before
    looked_up = change(ORDER, None, kind="update")
    assert len(rows(text, looked_up)) == 1


def test_a_domain_that_is_written_out_takes_its_own_documents_alone() -> None:
    text = 'topic = "plant-2/devices/batch/alerts"\n'
    assert rows(text, change(ORDER)) == []
    assert [row.topic for row in rows(text, change(ORDER, key="plant-2/o1"))] == ["plant-2/devices/batch/alerts"]


def test_a_key_without_a_domain_belongs_to_the_first_one() -> None:
    text = 'topic = "{domain}/devices/{_key}/telemetry"\n'
    assert [row.topic for row in rows(text, change(ORDER, key="o1"))] == ["iotsphere/devices/o1/telemetry"]
    with pytest.raises(IotSphereError, match="_key"):
        rows(text, change(ORDER, key="nowhere/o1"))


def test_rules_of_one_collection_follow_one_another() -> None:
    second = '[[map]]\ncollection = "orders"\ntopic = "{domain}/devices/batch/status"\n'
    assert [row.topic for row in rows(ALL + second, change(ORDER))] == [
        "iotsphere/users/ann/notifications",
        "iotsphere/devices/batch/status",
    ]


@pytest.mark.parametrize("owner", [None, 1.5, True, "", "a/b", "+", "a#", "ann bob", "-ann", "a" * 65, {"id": 1}])
def test_values_that_make_no_topic_are_refused(owner: object) -> None:
    with pytest.raises(IotSphereError):
        rows(ALL, change({**ORDER, "owner": owner}))


@given(st.text(max_size=12))
def test_no_value_leads_out_of_its_level(owner: str) -> None:
    try:
        (row,) = rows(ALL, change({**ORDER, "owner": owner}))
    except IotSphereError:
        return
    place = parse_topic(row.topic)
    assert (place.channel, place.user_id, row.topic.rpartition("/")[2]) == ("users", owner, "notifications")


def test_what_was_removed_and_is_not_known_any_more() -> None:
    gone = change(None)
    with pytest.raises(IotSphereError, match="does not know"):
        rows(ALL, gone)
    assert rows(ALL + 'on = ["update"]\n', gone) == []
    (row,) = rows('topic = "{domain}/devices/{_key}/telemetry"\n', gone)
    assert row.payload == {"_key": "o1", "_change": "delete"}
    assert rows(ALL, change(None, kind="update")) == []  # it went before it could be looked up: its removal follows
