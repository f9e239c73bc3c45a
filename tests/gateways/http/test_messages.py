"""Messages over HTTP: published durably and byte for byte, read back page by page, refused with a reason."""

from __future__ import annotations

from typing import Any

import httpx
import orjson
import pytest

from iotsphere.adapters.http.publishing import MAX_MESSAGES
from iotsphere.drivers.memory.log import MemoryLog
from iotsphere.entities.channel import Retention
from iotsphere.entities.errors import LogFull
from iotsphere.entities.message import Record
from iotsphere.use_cases.access.rate_limit import Rate
from iotsphere.use_cases.ports.message_log import Appended
from tests.support.http_door import Door, open_door

TOPIC = "iotsphere/devices/d1/telemetry"
ID = "0197f3c2-6d1e-7a52-9b0c-3f1f4d2e8a01"
PUBLISH = "/api/v1/messages"


def raw_post(api: httpx.AsyncClient, body: bytes) -> Any:
    return api.post(PUBLISH, content=body, headers={"content-type": "application/json"})


async def bodies(api: httpx.AsyncClient, *filters: str) -> list[dict[str, Any]]:
    answer = await api.get(PUBLISH, params={"filter": filters or ("iotsphere/#",)})
    assert answer.status_code == 200, answer.text
    found = answer.json()["messages"]
    assert isinstance(found, list)
    return found


async def letters(api: httpx.AsyncClient) -> list[dict[str, Any]]:
    found = (await api.get("/api/v1/dead-letters")).json()["dead_letters"]
    assert isinstance(found, list)
    return found


async def test_a_message_is_in_the_log_when_it_is_answered(door: Door, api: httpx.AsyncClient) -> None:
    answer = await api.post(PUBLISH, json={"topic": TOPIC, "payload": {"t": 21.5}, "message_id": ID})
    assert answer.status_code == 200
    entry = await door.rooms.log.find("iotsphere", ID)
    assert entry is not None
    place = entry.record.partition
    assert answer.json() == {
        "results": [
            {"message_id": ID, "position": f"telemetry/{place.number}/{entry.position.epoch}-1", "duplicate": False}
        ]
    }
    again = await api.post(PUBLISH, json={"topic": TOPIC, "payload": {"t": 21.5}, "message_id": ID})
    assert again.json()["results"][0] == {**answer.json()["results"][0], "duplicate": True}
    (message,) = await bodies(api)
    assert message["payload"] == {"t": 21.5}
    assert message["metadata"]["source"] == "tests"


async def test_many_messages_keep_their_order_and_get_a_result_each(api: httpx.AsyncClient) -> None:
    sent = [{"topic": f"iotsphere/devices/d{n % 3}/telemetry", "payload": {"n": n}} for n in range(100)]
    answer = await api.post(PUBLISH, json={"messages": sent})
    results = answer.json()["results"]
    assert (answer.status_code, len(results)) == (200, 100)
    assert len({result["message_id"] for result in results}) == 100
    for device in range(3):
        got = [message["payload"]["n"] for message in await bodies(api, f"iotsphere/devices/d{device}/#")]
        assert got == list(range(device, 100, 3))


async def test_an_envelope_is_taken_as_it_is(api: httpx.AsyncClient) -> None:
    other = "0197f3c2-0000-7000-8000-00000000abcd"
    metadata = {"messageId": ID, "topic": TOPIC, "correlationId": other, "timestamp": "2025-12-31T23:59:00.000Z",
                "quality": "good"}  # fmt: skip
    answer = await api.post(PUBLISH, json={"metadata": metadata, "payload": {"t": 1}})
    assert answer.status_code == 200, answer.text
    (message,) = await bodies(api)
    assert message["metadata"] == {
        "messageId": ID, "timestamp": "2025-12-31T23:59:00.000Z", "topic": TOPIC, "source": "tests",
        "correlationId": other, "messageType": "event", "version": "1.0", "receivedAt": "2026-01-01T00:00:00.000Z",
        "quality": "good",
    }  # fmt: skip


async def test_facts_beside_the_payload_reach_the_envelope(api: httpx.AsyncClient) -> None:
    body = {
        "topic": TOPIC,
        "payload": 7,
        "correlation_id": ID,
        "expires_at": "2026-01-01T01:00:00+00:00",
        "retain": True,
    }
    assert (await api.post(PUBLISH, json=body)).status_code == 200
    (message,) = await bodies(api)
    assert (message["payload"], message["metadata"]["correlationId"]) == ({"value": 7}, ID)
    assert message["metadata"]["expiresAt"] == "2026-01-01T01:00:00.000Z"


async def test_numbers_travel_to_their_last_digit(api: httpx.AsyncClient) -> None:
    await raw_post(api, b'{"topic":"%b","payload":{"big": 9007199254740993, "pi": 3.14159}}' % TOPIC.encode())
    answer = await api.get(PUBLISH, params={"filter": TOPIC})
    assert b'"payload":{"big":9007199254740993,"pi":3.14159}' in answer.content


@pytest.mark.parametrize(
    ("payload", "status", "reason"),
    [
        (b'{"t":1,"t":2}', 422, "json_duplicate_key"),
        (b'{"t":1,"\\u0074":2}', 422, "json_duplicate_key"),
        (b'{"a":{"t":1,"t":2}}', 422, "json_duplicate_key"),
        (b"NaN", 422, "number_not_finite"),
        (b'{"t":1e400}', 422, "number_not_finite"),
        (b'{"t":9223372036854775808}', 422, "int_out_of_range"),
        (b"[" * 40 + b"]" * 40, 422, "json_too_deep"),
        (b'{"$where":1}', 422, "key_not_allowed"),
        (b"{'t':1}", 422, "payload_not_json"),
        (b'{"t":"\xff"}', 422, "payload_not_utf8"),
        (b'"' + b"x" * (256 * 1024) + b'"', 413, "payload_too_large"),
    ],
)
async def test_a_payload_that_the_edge_refuses_is_a_dead_letter_byte_for_byte(
    door: Door, api: httpx.AsyncClient, payload: bytes, status: int, reason: str
) -> None:
    answer = await raw_post(api, b'{"topic":"%b","payload": %b }' % (TOPIC.encode(), payload))
    assert answer.status_code == status
    told = answer.json()
    assert (told["error"]["code"], told["error"]["retry"]) == (reason, False)
    (letter,) = await letters(api)
    assert (letter["reason"], letter["topic"], letter["source"], letter["id"]) == (
        reason, TOPIC, "tests", told["results"][0]["dead_letter"],
    )  # fmt: skip
    stored = (await door.rooms.dead_letters.get(door.rooms.operator, letter["id"])).letter
    assert (stored.raw, stored.size) == (payload[:4096], len(payload))
    assert await bodies(api, "iotsphere/devices/#") == []


@pytest.mark.parametrize(
    ("topic", "status", "reason", "letter"),
    [
        ("iotsphere/devices/+/telemetry", 422, "topic_invalid", "topic_invalid"),
        ("iotsphere/x", 422, "topic_invalid", "topic_invalid"),
        ("iotsphere/devices/d1/" + "x" * 600, 422, "topic_too_long", "topic_too_long"),
        ("other/devices/d1/telemetry", 403, "forbidden", "acl_denied"),
        ("nowhere/devices/d1/telemetry", 403, "forbidden", "acl_denied"),
    ],
)
async def test_a_topic_that_may_not_be_used_is_a_dead_letter(
    api: httpx.AsyncClient, topic: str, status: int, reason: str, letter: str
) -> None:
    answer = await api.post(PUBLISH, json={"topic": topic, "payload": 1})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, reason)
    assert [one["reason"] for one in await letters(api)] == [letter]


async def test_of_many_messages_the_good_ones_are_kept_and_the_answer_says_so(api: httpx.AsyncClient) -> None:
    topic = TOPIC.encode()
    body = (
        b'{"messages":[{"topic":"%b","payload":1},{"topic":"%b","payload":{"a":1,"a":1}},{"payload":3,"topic":"%b"}]}'
    )
    answer = await raw_post(api, body % (topic, topic, topic))
    told = answer.json()
    assert (answer.status_code, told["error"]["code"]) == (422, "json_duplicate_key")
    assert [sorted(result) for result in told["results"]] == [
        ["duplicate", "message_id", "position"],
        ["dead_letter", "error"],
        ["duplicate", "message_id", "position"],
    ]
    assert [message["payload"] for message in await bodies(api, "iotsphere/devices/#")] == [{"value": 1}, {"value": 3}]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"1", b"{}", b"{", b"}", b'{"topic":"a/b/c"}', b'{"payload":1}', b'{"topic":1,"payload":1}',
        b'{"topic":"a/b/c","payload":1,"x":1}', b'{"topic":"a/b/c","topic":"a/b/d","payload":1}',
        b'{"topic":"a/b/c","payload":1}}', b'{"topic":"a/b/c","payload":1} {}', b'{"topic":"a/b/c","payload":1,}',
        b'{,"topic":"a/b/c","payload":1}', b'{"topic" "a/b/c","payload":1}', b'{"topic":"a/b/c","payload":[1}',
        b'{"metadata":1,"payload":1}', b'{"metadata":{},"payload":1}', b'{"metadata":{"topic":1},"payload":1}',
        b'{"messages":[]}', b'{"messages":{}}', b'{"messages":[1]}', b'{"messages":[{"topic":"a/b/c","payload":1},]}',
        b'{"messages":[{"topic":"a/b/c","payload":1}],"topic":"a/b/c"}', b'{"topic":"a/b/c","payload":1,"retain":1}',
        b'{"topic":"a/b/c","payload":1,"expires_at":"soon"}', b'{"topic":"a/b/c","payload":1,"message_id":5}',
        b'{"topic":"a/b/c","payload":1,"expires_at":"%b"}' % (b"9" * 5_000), b"\xff\xfe", b'{"\xff":1,"payload":1}',
        b'{"topic":"\\ud800","payload":1}', b"[" * 20_000, b'{"a":' * 20_000,
        b'{"messages":[' + b",".join([b'{"topic":"a/b/c","payload":1}'] * (MAX_MESSAGES + 1)) + b"]}",
    ],
)  # fmt: skip
async def test_a_request_that_is_wrong_itself_publishes_nothing(api: httpx.AsyncClient, body: bytes) -> None:
    answer = await raw_post(api, body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]["code"] in ("request_invalid", "json_duplicate_key")
    assert await bodies(api) == []


async def test_publishing_a_command_takes_the_right_to_command(door: Door) -> None:
    topic = "iotsphere/devices/d1/commands/request"
    async with door.client(door.token(grants=["publish:iotsphere/#"])) as api:
        answer = await api.post(PUBLISH, json={"topic": topic, "payload": {"action": "reboot"}})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    async with door.client(door.token(grants=["command:iotsphere/devices/+/commands/request"])) as api:
        answer = await api.post(PUBLISH, json={"topic": topic, "payload": {"action": "reboot"}})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
        await door.rooms.devices.register("iotsphere", "d1")
        answer = await api.post(PUBLISH, json={"topic": topic, "payload": {"action": "reboot"}})
        assert answer.status_code == 200
        assert answer.json()["results"][0]["command"]["state"] == "queued"


async def test_too_fast_is_told_with_the_time_to_wait(door: Door, api: httpx.AsyncClient) -> None:
    door.rooms.rates._client = Rate(messages=0.1, burst=10)
    body = {"messages": [{"topic": TOPIC, "payload": 1}] * 30}
    assert (await api.post(PUBLISH, json=body)).status_code == 200
    answer = await api.post(PUBLISH, json={"topic": TOPIC, "payload": 1})
    assert (answer.status_code, answer.json()["error"]["code"], answer.json()["error"]["retry"]) == (
        429, "rate_limited", True,
    )  # fmt: skip
    assert 280 <= int(answer.headers["retry-after"]) <= 301
    assert len(await bodies(api)) == 30
    async with door.client(door.token(subject="service:other")) as other:
        assert (await other.post(PUBLISH, json={"topic": TOPIC, "payload": 1})).status_code == 200


class _FullLog(MemoryLog):
    """A log without room."""

    async def append(self, records: list[Record]) -> Appended:  # type: ignore[override]  # it never looks at them
        raise LogFull(f"no room for {len(records)} messages; free some disk")

    async def ready(self) -> None:
        raise LogFull("no room; free some disk")


async def test_a_full_log_is_told_and_may_be_tried_again() -> None:
    async with open_door(log_class=_FullLog) as door, door.client() as api:
        answer = await api.post(PUBLISH, json={"topic": TOPIC, "payload": 1})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "log_full")
        assert (answer.json()["error"]["retry"], answer.headers["retry-after"]) == (True, "1")
        answer = await api.get("/ready")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "log_full")
        assert (await api.get("/healthz")).status_code == 200


# -- reading back ------------------------------------------------------------------------------------------------------


async def test_history_is_paged_by_its_cursor_without_a_gap_or_a_twin(api: httpx.AsyncClient) -> None:
    sent = [{"topic": f"iotsphere/devices/d{n % 5}/telemetry/t", "payload": {"n": n}} for n in range(23)]
    await api.post(PUBLISH, json={"messages": sent})
    params: dict[str, Any] = {"filter": ["iotsphere/devices/+/telemetry/#", "iotsphere/devices/d1/#"], "limit": 5}
    got: list[int] = []
    for _ in range(10):
        answer = (await api.get(PUBLISH, params=params)).json()
        assert len(answer["messages"]) <= 5
        got += [message["payload"]["n"] for message in answer["messages"]]
        params["cursor"] = answer["cursor"]
        if not answer["more"]:
            break
    assert sorted(got) == list(range(23))
    for device in range(5):
        assert [n for n in got if n % 5 == device] == list(range(device, 23, 5))
    await api.post(PUBLISH, json={"topic": TOPIC, "payload": {"n": 99}})
    answer = (await api.get(PUBLISH, params=params)).json()
    assert [message["payload"]["n"] for message in answer["messages"]] == [99]


async def test_history_from_a_time(door: Door, api: httpx.AsyncClient) -> None:
    for n in range(4):
        await api.post(PUBLISH, json={"topic": TOPIC, "payload": {"n": n}})
        door.rooms.clock.advance(1_000)
    for start in ("2026-01-01T00:00:02Z", "2026-01-01T01:00:02+01:00", str(1_767_225_602_000)):
        answer = await api.get(PUBLISH, params={"filter": TOPIC, "from": start})
        assert [message["payload"]["n"] for message in answer.json()["messages"]] == [2, 3], start


async def test_history_tells_what_is_gone(door: Door, api: httpx.AsyncClient) -> None:
    cursor = (await api.get(PUBLISH, params={"filter": TOPIC})).json()["cursor"]
    await api.post(PUBLISH, json={"messages": [{"topic": TOPIC, "payload": n} for n in range(3)]})
    place = next(p for p in door.rooms.log.partitions("iotsphere", "telemetry") if door.rooms.log.shelf(p).entries)
    await door.rooms.log.retain(place, Retention(0, 0, 0, 0), door.rooms.clock.now() + 1)
    answer = (await api.get(PUBLISH, params={"filter": TOPIC, "cursor": cursor})).json()
    assert answer["messages"] == []
    assert answer["gaps"] == [
        {"partition": f"telemetry/{place.number}", "first": 1, "last": 3, "count": 3, "reason": "retention"}
    ]


async def test_a_cursor_is_bound_to_its_filters_and_its_principal(door: Door, api: httpx.AsyncClient) -> None:
    cursor = (await api.get(PUBLISH, params={"filter": TOPIC})).json()["cursor"]
    assert (await api.get(PUBLISH, params={"filter": TOPIC, "cursor": cursor})).status_code == 200
    altered = ("A" if cursor[0] != "A" else "B") + cursor[1:]
    for params in ({"filter": TOPIC, "cursor": altered}, {"filter": f"{TOPIC}/t", "cursor": cursor}):
        answer = await api.get(PUBLISH, params=params)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "cursor_invalid")
    async with door.client(door.token(subject="service:other")) as other:
        assert (await other.get(PUBLISH, params={"filter": TOPIC, "cursor": cursor})).status_code == 422


@pytest.mark.parametrize(
    ("params", "status", "code"),
    [
        ({}, 422, "request_invalid"),
        ({"filter": "#"}, 422, "filter_invalid"),
        ({"filter": "+/devices/#"}, 422, "filter_invalid"),
        ({"filter": "$SYS/#"}, 422, "filter_invalid"),
        ({"filter": "$share/g/iotsphere/#"}, 422, "filter_invalid"),
        ({"filter": "other/#"}, 403, "forbidden"),
        ({"filter": ["iotsphere/#", "other/#"]}, 403, "forbidden"),
        ({"filter": "nowhere/#"}, 403, "forbidden"),
        ({"filter": TOPIC, "limit": 0}, 422, "request_invalid"),
        ({"filter": TOPIC, "limit": 1001}, 422, "request_invalid"),
        ({"filter": TOPIC, "limit": "many"}, 422, "request_invalid"),
        ({"filter": TOPIC, "from": "yesterday"}, 422, "request_invalid"),
        ({"filter": TOPIC, "from": "9" * 60}, 422, "request_invalid"),
        ({"filter": TOPIC, "token": "abc"}, 422, "request_invalid"),
        ({"filter": [f"iotsphere/devices/d{n}/#" for n in range(101)]}, 422, "request_invalid"),
    ],
)
async def test_queries_that_are_wrong_or_reach_too_far_are_refused(
    api: httpx.AsyncClient, params: dict[str, Any], status: int, code: str
) -> None:
    answer = await api.get(PUBLISH, params=params)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    if "from" not in params:
        assert (await api.get("/api/v1/latest", params=params)).status_code == status


async def test_last_values_by_topic(door: Door, api: httpx.AsyncClient) -> None:
    sent = [{"topic": f"iotsphere/devices/d{n % 4}/telemetry", "payload": {"n": n}} for n in range(8)]
    await api.post(PUBLISH, json={"messages": sent})
    await door.rooms.catch_up()
    params: dict[str, Any] = {"filter": "iotsphere/devices/#", "limit": 3}
    first = (await api.get("/api/v1/latest", params=params)).json()
    assert [message["payload"]["n"] for message in first["messages"]] == [4, 5, 6]
    rest = (await api.get("/api/v1/latest", params={**params, "after": first["after"]})).json()
    assert ([message["payload"]["n"] for message in rest["messages"]], rest["after"]) == ([7], None)


async def test_a_message_can_be_traced(door: Door, api: httpx.AsyncClient) -> None:
    await api.post(PUBLISH, json={"topic": TOPIC, "payload": 1, "message_id": ID, "expires_at": "2026-01-02T00:00:00Z"})
    await door.rooms.catch_up()
    await door.rooms.feed.save()
    told = (await api.get(f"/api/v1/messages/{ID}/trace")).json()
    assert told["place"]["topic"] == TOPIC
    assert told["place"]["position"].startswith("telemetry/")
    assert (told["place"]["appended_at"], told["place"]["expires_at"]) == (
        "2026-01-01T00:00:00.000Z", "2026-01-02T00:00:00.000Z",
    )  # fmt: skip
    assert (told["message_id"], told["dead_letter"]) == (ID, None)
    assert told["readers"] == [{"reader": "iotsphere/last-values", "passed": True}]
    assert (await api.get("/api/v1/messages/unknown/trace")).status_code == 404


async def test_answers_are_json_that_no_browser_takes_for_anything_else(api: httpx.AsyncClient) -> None:
    evil = "<script>alert(1)</script>"
    await api.post(PUBLISH, json={"topic": TOPIC, "payload": {"name": evil}})
    answer = await api.get(PUBLISH, params={"filter": TOPIC})
    assert orjson.loads(answer.content)["messages"][0]["payload"] == {"name": evil}
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
