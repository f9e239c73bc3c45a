"""Messages on shadow/reported, through the edge and the log, become reports; what does not fit is refused with a reason."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from iotsphere.adapters.shadow.body import ShadowDocument
from iotsphere.adapters.shadow.facts import ShadowFacts, read_report
from iotsphere.adapters.timestamps import iso
from iotsphere.drivers.memory.database import MemoryDatabase
from iotsphere.entities.errors import IotSphereError, MessageRefused, NotFound
from iotsphere.entities.message import Entry
from iotsphere.entities.principal import Principal, device, parse_grant
from iotsphere.entities.shadow import Shadow, ShadowKey
from iotsphere.entities.shadow_changes import Wanted
from iotsphere.use_cases.ports.facts import FactHandler
from iotsphere.use_cases.shadow.shadows import Shadows
from iotsphere.use_cases.shadow.writer import SHADOWS
from tests.support.rooms import Rooms, open_rooms
from tests.use_cases.shadow_house import no_log

DOMAIN = "iotsphere"
TOPIC = f"{DOMAIN}/devices/dev-c/shadow/reported"
DEVICE = device(DOMAIN, "dev-c")


@dataclass
class Stage:
    rooms: Rooms
    shadows: Shadows
    facts: FactHandler

    async def say(self, payload: Any, topic: str = TOPIC, who: Principal = DEVICE) -> Entry:
        return await self.rooms.say(topic, payload, who)

    async def fold(self, *payloads: Any) -> list[str]:
        """Publish payloads as the device does, fold them in one slice, and return what became of each."""
        results = await self.facts([await self.say(payload) for payload in payloads])
        return [result.code if isinstance(result, IotSphereError) else result for result in results]

    def enveloped(self, payload: Any, **metadata: Any) -> bytes:
        return orjson.dumps({"metadata": metadata, "payload": payload})

    async def shadow(self, name: str = "") -> Shadow:
        return await self.shadows.get(ShadowKey(DOMAIN, "dev-c", name))


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with open_rooms() as rooms:
        database = MemoryDatabase(rooms.clock)
        await database.ensure((SHADOWS,))
        shadows = Shadows(database, ShadowDocument(), rooms.clock, no_log)
        yield Stage(rooms, shadows, ShadowFacts(shadows))


async def test_a_report_carries_what_the_message_says(stage: Stage) -> None:
    now = stage.rooms.clock.now()
    said = stage.enveloped(
        {"reported": {"a": 1}, "refused": {"/b": "no"}, "version": 3, "sequence": 2},
        messageId="0197a0b0-0000-7000-8000-000000000001",
        timestamp=iso(now - 60_000),
    )
    entry = await stage.say(said)
    key, report = read_report(entry)
    assert key == ShadowKey(DOMAIN, "dev-c")
    assert (report.patch, report.refused, report.version, report.sequence) == ({"a": 1}, {"/b": "no"}, 3, 2)
    assert (report.at, report.stated, report.author) == (now - 60_000, True, "dev-c")
    assert report.message_id == "0197a0b0-0000-7000-8000-000000000001"
    partition = entry.record.partition
    assert report.place == (f"shadow/{partition.number}", *entry.position)


@pytest.mark.parametrize(
    "timestamp",
    [None, "2001-01-01T00:00:00Z", "2026-01-01T00:00:00"],
    ids=["none", "not believed", "without a zone"],
)
async def test_only_a_time_that_is_sure_makes_a_report_late(stage: Stage, timestamp: str | None) -> None:
    metadata = {} if timestamp is None else {"timestamp": timestamp}
    _, report = read_report(await stage.say(stage.enveloped({"reported": {"a": 1}}, **metadata)))
    assert not report.stated


async def test_a04_null_removes_a_reported_key(stage: Stage) -> None:
    assert await stage.fold({"reported": {"led": True, "t": 1}}, b'{"reported":{"led":null}}') == ["applied"] * 2
    assert ((await stage.shadow()).reported, (await stage.shadow()).version) == ({"t": 1}, 2)
    assert await stage.fold(b'{"reported":{"led":null}}') == ["applied"]
    assert (await stage.shadow()).version == 2


async def test_b22_a_report_with_an_older_time_leaves_what_is_newer(stage: Stage) -> None:
    now = stage.rooms.clock.now()

    def at(minutes: int, patch: dict[str, Any]) -> bytes:
        return stage.enveloped({"reported": patch}, timestamp=iso(now - minutes * 60_000))

    outcomes = await stage.fold(at(10, {"a": 1, "b": 1}), at(5, {"a": 2}), at(8, {"a": 9, "b": 2}), at(9, {"a": 8}))
    assert outcomes == ["applied", "applied", "applied", "superseded"]
    assert (await stage.shadow()).reported == {"a": 2, "b": 2}


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ({"led": True}, "schema_violation"),
        ({"state": {"reported": {"led": True}}}, "schema_violation"),
        ({"reported": {"a": 1}, "led": True}, "schema_violation"),
        (b"21.5", "schema_violation"),
        (b"[1,2]", "schema_violation"),
        ({}, "schema_violation"),
        ({"reported": None}, "schema_violation"),
        ({"reported": [1]}, "schema_violation"),
        ({"reported": {}, "version": "3"}, "schema_violation"),
        ({"reported": {}, "version": -1}, "schema_violation"),
        ({"reported": {}, "version": True}, "schema_violation"),
        ({"reported": {}, "sequence": 1.5}, "schema_violation"),
        ({"refused": "no"}, "schema_violation"),
        ({"refused": {"/a": 1}}, "schema_violation"),
        ({"refused": {"a": "no"}}, "schema_violation"),
        ({"reported": {"a": [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]}}, "json_too_deep"),
        ({"reported": {"text": "x" * 70_000}}, "payload_too_large"),
        ({"reported": {"a": 1}, "version": 7}, "version_conflict"),
    ],
)
async def test_what_does_not_fit_is_refused_whole_with_a_reason(stage: Stage, payload: Any, code: str) -> None:
    assert await stage.fold(payload, {"reported": {"ok": 1}}) == [code, "applied"]
    assert ((await stage.shadow()).reported, (await stage.shadow()).version) == ({"ok": 1}, 1)


async def test_a_bare_patch_is_told_how_to_be_sent(stage: Stage) -> None:
    (refused,) = await stage.facts([await stage.say({"led": True})])
    assert isinstance(refused, MessageRefused)
    assert refused.message == (
        'the payload does not fit a shadow: \'led\' does not belong there: send it as in {"reported": {"interval": 5}}'
    )


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b'{"reported":{"a.b":1,"$set":{"role":"admin"},"x.$[]":1,"":2,"arr.0":3}}', "key_not_allowed"),
        (b'{"reported":{"acl.role":"admin"}}', "key_not_allowed"),
        (b'{"reported":{"p":{"$inc":{"n":1}}}}', "key_not_allowed"),
        (b'{"reported":{"list":[{"$ne":null}]}}', "key_not_allowed"),
        (b'{"reported":{"a\\u0000b":1}}', "key_not_allowed"),
        (b'{"reported":{"":1}}', "key_not_allowed"),
        (b'{"reported":{"%s":1}}' % (b"k" * 129), "key_not_allowed"),
        (b'{"reported":{"a":"\\ud800"}}', "invalid_string"),
    ],
)
async def test_c05_keys_that_a_database_would_interpret_never_pass(stage: Stage, payload: bytes, code: str) -> None:
    with pytest.raises(MessageRefused) as refused:
        await stage.say(payload)
    assert refused.value.code == code
    assert await stage.fold({"reported": {"a": 1}}) == ["applied"]


async def test_c05_a_value_that_looks_like_a_path_is_a_text(stage: Stage) -> None:
    assert await stage.fold(b'{"reported":{"acl":{"role":"user"},"name":"$acl.role"}}') == ["applied"]
    assert (await stage.shadow()).reported == {"acl": {"role": "user"}, "name": "$acl.role"}


@pytest.mark.parametrize("key", ["__proto__", "constructor", "prototype"])
async def test_c06_keys_that_pollute_prototypes_never_pass(stage: Stage, key: str) -> None:
    with pytest.raises(MessageRefused) as refused:
        await stage.say({"reported": {"led": True, "deep": {key: {"isAdmin": True}}}})
    assert refused.value.code == "key_not_allowed"
    with pytest.raises(NotFound):
        await stage.shadow()


async def test_c06_html_in_a_value_stays_text(stage: Stage) -> None:
    assert await stage.fold({"reported": {"name": "<img src=x onerror=alert(1)>"}}) == ["applied"]
    assert (await stage.shadow()).reported == {"name": "<img src=x onerror=alert(1)>"}


async def test_a_device_refuses_what_it_cannot_be(stage: Stage) -> None:
    await stage.shadows.desire(ShadowKey(DOMAIN, "dev-c"), Wanted(patch={"speed": 9000}, author="ui"))
    assert await stage.fold({"refused": {"/speed": "above 3000"}}) == ["applied"]
    wish = (await stage.shadow()).wishes["/speed"]
    assert (wish.status, wish.reason) == ("refused", "above 3000")
    assert (await stage.shadow()).delta == {}


async def test_named_shadows_are_apart_and_other_topics_are_passed_by(stage: Stage) -> None:
    grant = parse_grant("publish:{domain}/devices/{device_id}/shadow/#", domain=DOMAIN, name="dev-c")
    who = Principal("device", "dev-c", DOMAIN, (grant,))
    radio = f"{DOMAIN}/devices/dev-c/shadow/radio/reported"
    told = f"{DOMAIN}/devices/dev-c/shadow/document"
    entries = [
        await stage.say({"reported": {"rssi": -70}}, radio, who),
        await stage.say({"reported": {"a": 1}}),
        await stage.say({"anything": 1}, told, who),
    ]
    assert await stage.facts(entries) == ["applied"] * 3
    assert (await stage.shadow("radio")).reported == {"rssi": -70}
    assert (await stage.shadow()).reported == {"a": 1}
    assert [stage.facts.handles(topic) for topic in (TOPIC, radio, told)] == [True, True, False]
