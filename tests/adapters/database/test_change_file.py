"""The file of further collections: what it says, and what is told about a mistake in it."""

from __future__ import annotations

import pytest

from iotsphere.adapters.database.change_file import parse_changes
from iotsphere.entities.errors import RequestInvalid
from iotsphere.use_cases.ports.database import Collection

GOOD = """\
[[map]]
collection = "work_orders"
topic = "{domain}/users/{owner.id}/notifications"
payload = ["title", "meta.room", "_change"]
on = ["insert", "delete"]
where = { state = "open", "meta.urgent" = true }
where_not_there = 1
"""
DOMAINS = ("iotsphere", "plant-2")


def entry(**members: str) -> str:
    known = {"collection": '"orders"', "topic": '"{domain}/users/{owner}/notifications"', **members}
    return "[[map]]\n" + "".join(f"{name} = {value}\n" for name, value in known.items() if value)


def test_the_collections_are_watched_each_once() -> None:
    text = entry() + entry(topic='"plant-2/devices/{device}/telemetry/{metric}"') + entry(collection='"rooms"')
    found = parse_changes(text, "changes.toml", DOMAINS).collections
    assert found == (Collection("orders", watched=True), Collection("rooms", watched=True))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("map = 1\n", "it has no entry: add [[map]]"),
        ("maps = 1\n", "it has no entry"),
        ("x = [\n", "it is no TOML: "),
        ("", "it has no entry: add [[map]]"),
        (entry() + entry(collection=""), "[[map]] entry 2, collection: Field required"),
        (GOOD, "[[map]] entry 1, where_not_there: Extra inputs are not permitted"),
        (entry(collection='"Orders"'), "[[map]] entry 1, collection: 'Orders' cannot be watched"),
        (entry(collection='"shadows"'), "[[map]] entry 1, collection: shadows is the gateway's own"),
        (
            entry(topic='"{domain}/users/{owner}/preferences"'),
            "topic: '{domain}/users/{owner}/preferences' leads nowhere",
        ),
        (entry(topic='"{domain}/users/{owner}"'), "leads nowhere"),
        (entry(topic='"{domain}/devices/{d}/shadow/{kind}"'), "leads nowhere"),
        (entry(topic='"{domain}/devices/{d}/shadow/desired"'), "choose telemetry, shadow/reported, notifications"),
        (entry(topic='"{domain}/devices/{d}/commands/request"'), "choose telemetry"),
        (entry(topic='"{domain}/system/alerts"'), "choose telemetry"),
        (entry(topic='"{domain}/devices/+/telemetry"'), "topic: '{domain}/devices/+/telemetry' is no topic"),
        (entry(topic='"{domain}/devices/{d/telemetry"'), "is no topic"),
        (entry(topic='"{domain}/devices/{}/telemetry"'), "topic: {} is no field"),
        (entry(topic='"{domain}/devices/{_change}/telemetry"'), "topic: {_change} is the store's own"),
        (
            entry(topic='"elsewhere/devices/{d}/telemetry"'),
            "lies in no domain of this gateway: begin it with {domain}/",
        ),
        (entry(topic='"{owner}/devices/{d}/telemetry"'), "lies in no domain of this gateway"),
        (entry(payload="[]"), "payload: it is empty: name fields"),
        (entry(payload='["a..b"]'), "payload: 'a..b' is no field"),
        (entry(payload='["$where"]'), "payload: '$where' is no field"),
        (entry(payload='"some"'), "entry 1, payload: "),
        (entry(on='["insert", "drop"]'), "entry 1, on: "),
        (entry(on="[]"), "entry 1, on: "),
        (entry(where="{ a = [1] }"), "where: a must equal a text, a number or a boolean"),
        (entry(where='{ "a b" = 1 }'), "where: 'a b' is no field"),
    ],
)
def test_a_mistake_is_told_with_its_entry_its_member_and_a_remedy(text: str, told: str) -> None:
    with pytest.raises(RequestInvalid) as caught:
        parse_changes(text, "changes.toml", DOMAINS, own=("shadows",))
    assert caught.value.message.startswith("changes.toml: ")
    assert told in caught.value.message
