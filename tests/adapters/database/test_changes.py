"""Changes of the database as messages: golden files per kind of change, ids that follow from tokens, and alerts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import orjson
import pytest

from iotsphere.adapters.database.change_file import parse_changes
from iotsphere.adapters.database.changes import DatabaseChangeAdapter
from iotsphere.adapters.shadow.body import ShadowDocument
from iotsphere.entities import command as commands
from iotsphere.entities.command import Command
from iotsphere.entities.message import Record
from iotsphere.entities.shadow import Shadow, ShadowKey
from iotsphere.entities.shadow_changes import Wanted, deliver, desire
from iotsphere.entities.shadow_reports import Report, report
from iotsphere.use_cases.ports.database import Body, Change
from tests.adapters import golden
from tests.support.rooms import Rooms, open_rooms

AT = 1_772_000_000_000
KEY = ShadowKey("iotsphere", "dev-1")
CAUSE = "00000000-0000-4000-8000-0000000000aa"
FORM = ShadowDocument()
RULES = """
[[map]]
collection = "orders"
topic = "{domain}/users/{owner}/notifications"
payload = ["title"]
[[map]]
collection = "readings"
topic = "{domain}/devices/{_key}/telemetry"
"""


@pytest.fixture
async def rooms() -> AsyncIterator[Rooms]:
    async with open_rooms() as opened:
        yield opened


@pytest.fixture
def tell(rooms: Rooms) -> DatabaseChangeAdapter:
    mapped = parse_changes(RULES, "changes.toml", ("iotsphere", "other"))
    return DatabaseChangeAdapter(rooms.edge, rooms.clock, rooms.log.domains, mapped)


def change(collection: str, key: str, before: Body | None, after: Body | None, token: str = "t1") -> Change:
    kind = "delete" if after is None else "insert" if before is None else "update"
    return Change(token, AT, kind, collection, key, 1, before, after)


def shadows() -> list[Shadow]:
    """Nothing, a wish, its delivery, its fulfilment."""
    nothing = Shadow(key=KEY)
    wish = Wanted(patch={"rate": 5}, author="iotsphere/user/ann", message_id=CAUSE)
    wished, _ = desire(nothing, wish, AT)
    delivered = deliver(wished, 1, "delivered", AT + 1)
    said = Report(patch={"rate": 5}, at=AT + 2, author="dev-1", message_id=CAUSE)
    met, _ = report(delivered, said, AT + 2)
    return [nothing, wished, delivered, met]


def command() -> Command:
    return commands.accept(
        Command(
            id=CAUSE,
            domain="iotsphere",
            device="dev-1",
            caller="iotsphere/user/ann",
            payload={"action": "open"},
            created_at=AT,
            expires_at=AT + 60_000,
            timeout=5_000,
        )
    )


def cases() -> dict[str, Change]:
    nothing, wished, delivered, met = [FORM.write(each) if each.version else None for each in shadows()]
    accepted = command()
    sent = commands.advance(commands.advance(accepted, "logged", AT + 1), "sent", AT + 2)
    done = commands.advance(sent, "succeed", AT + 3, {"result": {"door": "open"}})
    note = {"content": {"text": "Filter is due", "author": "mallory"}, "unread": True, "at": AT}
    read = {"content": {"text": "Filter is due"}, "readAt": AT + 5, "at": AT}
    preferences = {"preferences": {"theme": "dark"}, "version": 3, "cause": CAUSE}
    return {
        "shadow_wished": change("shadows", KEY.text, nothing, wished),
        "shadow_delivered": change("shadows", KEY.text, wished, delivered),
        "shadow_met": change("shadows", KEY.text, delivered, met),
        "command_accepted": change("commands", accepted.key, None, commands.body_of(accepted)),
        "command_succeeded": change("commands", done.key, commands.body_of(sent), commands.body_of(done)),
        "notification_written": change("notifications", "iotsphere/ann/n1", None, note),
        "notification_read": change("notifications", "iotsphere/ann/n1", note, read),
        "preferences_changed": change("preferences", "iotsphere/ann", None, preferences),
        "preferences_removed": change("preferences", "iotsphere/ann", preferences, None),
        "mapped": change("orders", "other/o1", None, {"owner": "bob", "title": "Fan"}),
        "not_told": change("orders", "other/o1", None, {"owner": "a/b"}),
    }


CASES = cases()


def told(records: list[Record] | Any) -> bytes:
    """What goes into the log, one message after the other, as people read it."""
    shown = [{"retain": record.retain, **orjson.loads(record.body)} for record in records]
    return orjson.dumps(shown, option=orjson.OPT_INDENT_2)


@pytest.mark.parametrize("name", CASES)
def test_what_is_told_of_a_change(name: str, tell: DatabaseChangeAdapter) -> None:
    records = tell.records(CASES[name])
    golden.check(f"changes/{name}.json", told(records))
    assert tell.failed == (name == "not_told")
    again = tell.records(CASES[name])
    assert [record.message_id for record in again] == [record.message_id for record in records]
    later = tell.records(CASES[name]._replace(token="t2"))
    assert not {record.message_id for record in later} & {record.message_id for record in records}
    assert len({record.message_id for record in records}) == len(records)


SILENT = {
    "a shadow that is gone": change("shadows", KEY.text, {"version": 1}, None),
    "a command that is gone": change("commands", "iotsphere/x", commands.body_of(command()), None),
    "a command that is as it was": change(
        "commands", command().key, commands.body_of(command()), commands.body_of(command())
    ),
    "a notification that came through the log": change("notifications", "iotsphere/ann/n", None, {"logged": True}),
    "a notification that is gone": change("notifications", "iotsphere/ann/n", {"unread": True}, None),
}


@pytest.mark.parametrize("name", SILENT)
def test_what_concerns_nobody(name: str, tell: DatabaseChangeAdapter) -> None:
    assert tell.records(SILENT[name]) == []
    assert tell.failed == 0


STRANGE = {
    "a key of no shadow": change("shadows", "iotsphere/a b", None, {"version": 1}),
    "a domain of nobody": change("shadows", "nowhere/d1", None, {"version": 1, "reported": {"a": 1}}),
    "no key at all like ours": change("shadows", "x\ny", None, {"version": 1}),
    "a command without a device": change("commands", "iotsphere/x", None, {"id": "x"}),
    "a command in no state": change("commands", "iotsphere/x", None, {**commands.body_of(command()), "state": "lost"}),
    "a time that is none": change("commands", "iotsphere/x", None, {**commands.body_of(command()), "createdAt": "now"}),
    "a notification for nobody": change("notifications", "iotsphere/n1", None, {"content": {}}),
    "a notification with a user that is none": change("notifications", "iotsphere/a b/n1", None, {"content": {}}),
    "content that is no object": change("notifications", "iotsphere/ann/n1", None, {"content": "text"}),
    "a reading time that is none": change(
        "notifications", "iotsphere/ann/n1", {"unread": True}, {"content": {}, "readAt": "today"}
    ),
    "preferences that are not there": change("preferences", "iotsphere/ann", None, {"version": 1}),
    "preferences caused by a number": change("preferences", "iotsphere/ann", None, {"preferences": {}, "cause": 5}),
    "keys that nobody may send": change("preferences", "iotsphere/ann", None, {"preferences": {"__proto__": {}}}),
    "more than a message holds": change("readings", "iotsphere/d1", None, {"text": "x" * 300_000}),
}


@pytest.mark.parametrize("name", STRANGE)
def test_what_people_wrote_and_cannot_be_told_becomes_an_alert(name: str, tell: DatabaseChangeAdapter) -> None:
    (record,) = tell.records(STRANGE[name])
    assert record.topic == "iotsphere/system/alerts"
    payload = orjson.loads(record.body)["payload"]
    assert (payload["alert"], payload["document"]) == ("change_not_told", STRANGE[name].key)
    assert payload["reason"]
    assert "mend" in payload["remedy"]
    assert tell.failed == 1


def test_a_document_that_looks_like_an_envelope_is_none(tell: DatabaseChangeAdapter) -> None:
    stated = {"metadata": {"source": "somebody", "messageId": CAUSE}, "payload": {"n": 1}}
    rule = '[[map]]\ncollection = "readings"\ntopic = "{domain}/devices/{_key}/telemetry"\npayload = ["metadata", "payload"]\n'
    mapped = parse_changes(rule, "changes.toml", ("iotsphere",))
    found = DatabaseChangeAdapter(tell._edge, tell._clock, lambda: ("iotsphere",), mapped)
    (record,) = found.records(change("readings", "iotsphere/d1", None, stated))
    message = orjson.loads(record.body)
    assert message["payload"] == stated
    assert (message["metadata"]["source"], message["metadata"]["messageId"]) == ("database/readings", record.message_id)
    assert record.message_id != CAUSE


def test_a_loss_is_told_to_the_operators(tell: DatabaseChangeAdapter) -> None:
    record = tell.lost(AT, AT + 1_000, 7)
    assert record.topic == "iotsphere/system/alerts"
    golden.check("changes/history_lost.json", told([record]))
    assert orjson.loads(tell.lost(0, AT, 0).body)["payload"]["since"] is None


def test_what_was_mended_is_told_and_an_alert_says_so(tell: DatabaseChangeAdapter) -> None:
    said = change("notifications", "iotsphere/ann/n1", None, {"content": {"a": None}})
    told, alert = tell.records(said._replace(mended="a number that is not finite"))
    assert told.topic == "iotsphere/users/ann/notifications"
    assert alert.topic == "iotsphere/system/alerts"
    facts = orjson.loads(alert.body)["payload"]
    assert (facts["alert"], facts["collection"], facts["document"], facts["reason"]) == (
        "document_damaged", "notifications", "iotsphere/ann/n1", "it holds a number that is not finite"
    )  # fmt: skip
    assert (tell.damaged, tell.failed) == (1, 0)
    assert told.message_id != alert.message_id


def test_a_version_that_cannot_be_kept_has_an_alert_of_its_own(tell: DatabaseChangeAdapter) -> None:
    by_hand = change("shadows", KEY.text, None, {"desired": {"$x": 1}})
    alert = tell.unkept(by_hand, "the field name '$x' is empty, begins with $ or holds a dot or NUL: rename it")
    assert orjson.loads(alert.body)["payload"]["alert"] == "version_not_kept"
    assert alert.message_id not in [record.message_id for record in tell.records(by_hand)]
    assert alert.message_id == tell.unkept(by_hand, "another reason").message_id


def test_a_command_that_was_mended_is_told(tell: DatabaseChangeAdapter) -> None:
    (told,) = tell.records(change("commands", command().key, {"state": 7}, commands.body_of(command())))
    assert told.topic == "iotsphere/devices/dev-1/commands/status"


def test_a_command_under_another_key_moves_nobody(tell: DatabaseChangeAdapter) -> None:
    (told,) = tell.records(change("commands", "iotsphere/another", None, commands.body_of(command())))
    assert orjson.loads(told.body)["payload"]["reason"].startswith("its domain and id belong under 'iotsphere/0000")


@pytest.mark.parametrize(
    ("sizes", "left_out"),
    [
        ({"payload": 100_000, "result": 100_000}, None),
        ({"payload": 130_000, "result": 130_000}, ["payload"]),
        ({"payload": 130_000, "result": 255_000}, ["payload", "result"]),
        ({"payload": 250_000, "result": 10, "late": 1_000}, ["late", "payload"]),
        ({"payload": 10, "reason": 255_000}, ["payload", "reason"]),
    ],
)
def test_a_command_too_large_for_one_message_is_told_without_what_is_large(
    tell: DatabaseChangeAdapter, sizes: dict[str, int], left_out: list[str] | None
) -> None:
    text = {name: "x" * size for name, size in sizes.items()}
    done = commands.advance(
        command(), "succeed", AT + 1, {name: text[name] for name in text if name in ("result", "reason")}
    )
    late = ({"result": text["late"]},) if "late" in text else ()
    done = replace(done, payload={"text": text["payload"]}, late=late)
    (record,) = tell.records(change("commands", done.key, None, commands.body_of(done)))
    told = orjson.loads(record.body)["payload"]
    assert (told["commandId"], told["state"], told.get("leftOut")) == (CAUSE, "succeeded", left_out)
    assert told.keys().isdisjoint(left_out or ())
    assert tell.failed == 0
