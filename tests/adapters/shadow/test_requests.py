"""Requests on shadow/desired are decided at once, and answered with the version that they made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson
import pytest

from iotsphere.adapters.shadow.body import ShadowDocument
from iotsphere.adapters.shadow.requests import ShadowRequests, read_wanted
from iotsphere.adapters.timestamps import iso
from iotsphere.drivers.memory.database import MemoryDatabase
from iotsphere.entities.errors import Forbidden, MessageRefused, NotFound, VersionConflict
from iotsphere.entities.shadow import ShadowKey
from iotsphere.entities.topic import parse_topic
from iotsphere.use_cases.access.tokens import operator
from iotsphere.use_cases.shadow.shadows import Shadows
from iotsphere.use_cases.shadow.writer import SHADOWS
from tests.support.rooms import Rooms, open_rooms
from tests.use_cases.shadow_house import no_log

KEY = ShadowKey("iotsphere", "dev-s")
OPERATOR = operator("iotsphere")


class Stage:
    def __init__(self, rooms: Rooms, shadows: Shadows) -> None:
        self.rooms = rooms
        self.shadows = shadows
        self.requests = ShadowRequests(shadows)

    async def ask(self, payload: Any, kind: str = "desired", **metadata: Any) -> Mapping[str, object]:
        said = {"metadata": metadata, "payload": payload} if metadata else payload
        return await self.requests(OPERATOR, self.rooms.record(KEY.topic(kind), said, OPERATOR))


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with open_rooms() as rooms:
        database = MemoryDatabase(rooms.clock)
        await database.ensure((SHADOWS,))
        yield Stage(rooms, Shadows(database, ShadowDocument(), rooms.clock, no_log))


async def test_a_request_is_answered_with_its_version(stage: Stage) -> None:
    assert await stage.ask({"desired": {"led": True}}) == {"version": 1, "deltaSequence": 1, "changed": True}
    assert await stage.ask({"desired": {"led": True}}) == {"version": 1, "deltaSequence": 1, "changed": False}
    shadow = await stage.shadows.get(KEY)
    assert (shadow.desired, shadow.author, shadow.recent) == ({"led": True}, OPERATOR.name, ())


async def test_b22_a_stale_base_is_refused_and_the_same_message_is_answered_alike(stage: Stage) -> None:
    message_id = "00000000-0000-4000-8000-0000000000b2"
    await stage.ask({"desired": {"windowOpen": True}})
    with pytest.raises(VersionConflict) as conflict:
        await stage.ask({"desired": {"windowOpen": False}, "version": 0}, messageId=message_id)
    assert conflict.value.facts == {"version": 1, "state": {"reported": {}, "desired": {"windowOpen": True}}}
    old = {"messageId": message_id, "timestamp": "2024-01-01T00:00:00Z"}
    first = await stage.ask({"desired": {"windowOpen": False}, "version": 1}, **old)
    await stage.ask({"desired": {"windowOpen": True}})
    assert await stage.ask({"desired": {"windowOpen": False}, "version": 1}, messageId=message_id) == first
    assert (await stage.shadows.get(KEY)).version == 3


async def test_wishes_may_expire(stage: Stage) -> None:
    now = stage.rooms.clock.now()
    await stage.ask({"desired": {"a": {"x": 1}, "b": 2}, "expires": {"/a": iso(now + 5)}, "expiresAt": iso(now + 9)})
    wishes = (await stage.shadows.get(KEY)).wishes
    assert {pointer: wish.expires_at for pointer, wish in wishes.items()} == {"/a/x": now + 5, "/b": now + 9}
    with pytest.raises(MessageRefused) as refused:
        await stage.ask({"desired": {"b": 3}, "expiresAt": iso(now)})
    assert refused.value.code == "expired"


async def test_a_shadow_is_deleted_by_a_request(stage: Stage) -> None:
    with pytest.raises(NotFound):
        await stage.ask({"delete": True})
    await stage.ask({"desired": {"a": 1}})
    with pytest.raises(VersionConflict):
        await stage.ask({"delete": True, "version": 7})
    assert await stage.ask({"delete": True, "version": 1}) == {"version": 2, "deltaSequence": 2, "changed": True}
    with pytest.raises(VersionConflict):
        await stage.ask({"desired": {"a": 2}, "version": 1})
    assert (await stage.ask({"desired": {"a": 2}}))["version"] == 3


@pytest.mark.parametrize("kind", ["delta", "document"])
async def test_what_the_gateway_tells_nobody_else_tells(stage: Stage, kind: str) -> None:
    with pytest.raises(Forbidden, match="is told by the gateway: ask for changes on"):
        await stage.ask({"delta": {}}, kind)


def test_all_but_reports_are_requests(stage: Stage) -> None:
    topics = {kind: parse_topic(KEY.topic(kind)) for kind in ("reported", "desired", "delta", "document")}
    assert [kind for kind, topic in topics.items() if stage.requests.handles(topic)] == ["desired", "delta", "document"]
    assert not stage.requests.handles(parse_topic("iotsphere/devices/dev-s/commands/request"))


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ({"led": True}, "schema_violation"),
        ({"desired": True}, "schema_violation"),
        ({"desired": None}, "schema_violation"),
        ({"desired": {"a": 1}, "reported": {}}, "schema_violation"),
        ({"desired": {"a": 1}, "version": {"$ne": 0}}, "schema_violation"),
        ({"desired": {"a": 1}, "expires": ["/a"]}, "schema_violation"),
        ({"desired": {"a": 1}, "expires": {"a": "2030-01-01T00:00:00Z"}}, "schema_violation"),
        ({"desired": {"a": 1}, "expires": {"/b": "2030-01-01T00:00:00Z"}}, "schema_violation"),
        ({"desired": {"a": None}, "expires": {"/a": "2030-01-01T00:00:00Z"}}, "schema_violation"),
        ({"desired": {"a": 1}, "expires": {"/a": "soon"}}, "timestamp_invalid"),
        ({"desired": {"a": 1}, "expiresAt": {"$date": 0}}, "timestamp_invalid"),
        ({"desired": {"a": 1}, "expiresAt": -5}, "timestamp_invalid"),
        ({"desired": {"a": {"$set": 1}}}, "key_not_allowed"),
        ({"desired": {"a.b": 1}}, "key_not_allowed"),
        ({"desired": {"__proto__": 1}}, "key_not_allowed"),
        ({"desired": {"a": [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]}}, "json_too_deep"),
        ({"delete": False}, "schema_violation"),
        ({"delete": True, "desired": {}}, "schema_violation"),
    ],
)
def test_what_does_not_fit_is_refused(payload: dict[str, Any], code: str) -> None:
    with pytest.raises(MessageRefused) as refused:
        read_wanted(orjson.loads(orjson.dumps(payload)), "ui")
    assert refused.value.code == code
