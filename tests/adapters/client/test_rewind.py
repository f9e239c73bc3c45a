"""A client that plays the past: what it may ask, what it is told, and what it cannot have twice."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.adapters.client.test_session import Client
from tests.client.house import EVERYTHING, TOPIC, House, open_house, values
from tests.support.waiting import until


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house(partitions=1) as opened:
        yield opened


@pytest.fixture
async def client(house: House) -> Client:
    """A client, an hour after it published three messages."""
    client = Client(house)
    for value in range(3):
        await client.ask("publish", topic=TOPIC, payload=value)
        house.clock.advance(1_000)
    house.clock.advance(3_600_000)
    return client


def played(client: Client, name: str) -> list[tuple[int, str]]:
    """The values that a subscription was sent, each with the cursor after it."""
    frames = [frame for frame in client.outbox.of("messages") if frame["subscription"] == name]
    return [pair for frame in frames for pair in zip(values(frame["messages"]), frame.get("cursors", ()), strict=True)]


async def test_past_comes_at_its_speed_with_its_clock(client: Client) -> None:
    asked = {"filters": [EVERYTHING], "cursors": "message", "speed": 1000}
    await client.ask("subscribe", **asked, **{"from": "earliest"})
    await until(lambda: len(played(client, "s1")) == 3, "all is played")
    assert [value for value, _ in played(client, "s1")] == [0, 1, 2]
    first = client.outbox.of("clock")[0]
    assert (first["subscription"], first["state"], first["speed"], first["skipped"]) == ("s1", "playing", 1000, 0)
    await client.ask("subscribe", **asked, **{"from": played(client, "s1")[1][1]})
    await until(lambda: played(client, "s2"), "the last one is played again")
    assert [value for value, _ in played(client, "s2")] == [2]


@pytest.mark.parametrize(
    ("members", "remedy"),
    [
        ({"from": "live", "speed": 1}, "begin in the past"),
        ({"from": "latest", "speed": 1}, "begin in the past"),
        ({"from": "earliest", "speed": 1, "group": "billing"}, "leave group out"),
        ({"from": "earliest", "speed": 1001}, "less than or equal to 1000"),
    ],
)
async def test_what_cannot_be_played(client: Client, members: dict[str, object], remedy: str) -> None:
    refused = await client.ask("subscribe", filters=[EVERYTHING], **members)
    assert refused["code"] == "request_invalid"
    assert remedy in refused["message"]


async def test_rewinds_are_bounded_until_they_end(client: Client) -> None:
    for _ in range(4):
        assert (await client.ask("subscribe", filters=[TOPIC], **{"from": "earliest"}, speed=0))["type"] == "ok"
    refused = await client.ask("subscribe", filters=[TOPIC], **{"from": "earliest"}, speed=0)
    assert refused["code"] == "request_invalid"
    assert "4 subscriptions" in refused["message"]
    assert (await client.ask("subscribe", filters=[TOPIC], **{"from": "earliest"}))["type"] == "ok"
    await client.ask("unsubscribe", subscription="s1")
    assert (await client.ask("subscribe", filters=[TOPIC], **{"from": "earliest"}, speed=0))["type"] == "ok"


async def test_only_a_rewind_has_a_speed(client: Client) -> None:
    await client.ask("subscribe", filters=[TOPIC])
    for name in ("s1", "s7"):
        assert (await client.ask("play", subscription=name, speed=2))["code"] == "request_invalid"


async def test_client_that_is_busy_is_told_only_what_changes(client: Client) -> None:
    await client.ask("subscribe", filters=[TOPIC], **{"from": "earliest"}, speed=0)
    await until(lambda: client.outbox.of("clock"), "it stands still")
    client.outbox.full = True
    await client.ask("play", subscription="s1", speed=1000)
    await client.ask("play", subscription="s1", speed=0)
    assert [frame["state"] for frame in client.outbox.of("clock")] == ["paused", "paused"]
    assert client.outbox.of("messages") == []
