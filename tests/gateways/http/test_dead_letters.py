"""Dead letters over HTTP: listed, inspected with what was sent, sent again once, or given up."""

from __future__ import annotations

import base64

import httpx
import pytest

from iotsphere.entities.principal import device
from tests.support.http_door import Door

LETTERS = "/api/v1/dead-letters"
TOPIC = "iotsphere/system/status"


async def denied(door: Door, payload: bytes = b'{"t":1}') -> str:
    """The id of a dead letter about a good message on a topic that its device may not use."""
    return (await door.rooms.refuse(TOPIC, payload, device("iotsphere", "d1"))).message_id


async def test_letters_are_listed_without_and_shown_with_what_was_sent(door: Door, api: httpx.AsyncClient) -> None:
    ids = [await denied(door, b'{"n":%d}' % n) for n in range(5)]
    page = (await api.get(LETTERS, params={"limit": 2})).json()
    assert [letter["id"] for letter in page["dead_letters"]] == ids[:2:-1]
    assert {letter["raw"] for letter in page["dead_letters"]} == {None}
    rest = (await api.get(LETTERS, params={"limit": 10, "before": page["before"]})).json()
    assert ([letter["id"] for letter in rest["dead_letters"]], rest["before"]) == (ids[2::-1], None)
    letter = (await api.get(f"{LETTERS}/{ids[4]}")).json()
    assert base64.b64decode(letter["raw"]) == b'{"n":4}'
    assert (letter["reason"], letter["stage"], letter["source"], letter["topic"]) == (
        "acl_denied", "ingress", "d1", TOPIC,
    )  # fmt: skip
    assert (letter["received_at"], letter["state"], letter["complete"]) == ("2026-01-01T00:00:00.004Z", "open", True)


async def test_letters_are_selected(door: Door, api: httpx.AsyncClient) -> None:
    first = await denied(door)
    twice = (await door.rooms.refuse("iotsphere/devices/d1/telemetry", b'{"a":1,"a":1}')).message_id

    async def ids(**params: str) -> list[str]:
        answer = await api.get(LETTERS, params=params)
        return [letter["id"] for letter in answer.json()["dead_letters"]]

    assert await ids() == [twice, first]
    assert await ids(reason="acl_denied") == [first]
    assert await ids(device="d1") == [twice, first]
    assert await ids(device="d2") == []
    await api.delete(f"{LETTERS}/{first}")
    assert await ids() == [twice]
    assert await ids(state="discarded") == [first]
    assert await ids(state="any") == [twice, first]
    for wrong in ({"state": "new"}, {"limit": "0"}, {"before": "-1"}, {"before": "x"}, {"colour": "red"}):
        answer = await api.get(LETTERS, params=wrong)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "request_invalid")


async def test_redriving_twice_publishes_once(door: Door, api: httpx.AsyncClient) -> None:
    letter_id = await denied(door)
    first = (await api.post(f"{LETTERS}/{letter_id}/redrive")).json()
    again = (await api.post(f"{LETTERS}/{letter_id}/redrive")).json()
    assert first == {**again, "duplicate": False}
    assert again["duplicate"]
    answer = (await api.get("/api/v1/messages", params={"filter": TOPIC})).json()
    assert [message["metadata"]["messageId"] for message in answer["messages"]] == [first["message_id"]]
    letter = (await api.get(f"{LETTERS}/{letter_id}")).json()
    assert (letter["state"], letter["redriven_as"]) == ("redriven", first["message_id"])
    answer = await api.delete(f"{LETTERS}/{letter_id}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")


async def test_what_cannot_be_redriven_says_why(door: Door, api: httpx.AsyncClient) -> None:
    twice = (await door.rooms.refuse("iotsphere/devices/d1/telemetry", b'{"a":1,"a":1}')).message_id
    answer = await api.post(f"{LETTERS}/{twice}/redrive")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "json_duplicate_key")
    cut = await denied(door, b'{"x":"%b"}' % (b"y" * 5_000))
    answer = await api.post(f"{LETTERS}/{cut}/redrive")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "dead_letter_truncated")
    assert not (await api.get(f"{LETTERS}/{cut}")).json()["complete"]
    assert (await api.delete(f"{LETTERS}/{cut}")).status_code == 204
    answer = await api.post(f"{LETTERS}/{cut}/redrive")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")


@pytest.mark.parametrize("letter_id", ["unknown", "0197f3c2-6d1e-7a52-9b0c-3f1f4d2e8a01", "%2e%2e", "a%00b", "%0a"])
async def test_unknown_letters_are_not_found(door: Door, api: httpx.AsyncClient, letter_id: str) -> None:
    await denied(door)
    for method, path in (("GET", ""), ("POST", "/redrive"), ("DELETE", "")):
        answer = await api.request(method, f"{LETTERS}/{letter_id}{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
