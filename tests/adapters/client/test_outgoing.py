"""One frame for what a subscription gets in one turn, and nothing told too early or too late because of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import pytest

from iotsphere.adapters.client.outgoing import JOINED_BYTES
from iotsphere.adapters.client.session import ClientSession
from iotsphere.entities.position import Gap, Partition
from tests.client.house import EVERYTHING, House, open_house, values
from tests.use_cases.stage import DOMAIN


class Turns:
    """An outbox whose turn of the event loop ends when the test says so."""

    def __init__(self) -> None:
        self.full = False
        self.frames: list[dict[str, Any]] = []
        self._due: list[Callable[[], None]] = []

    def write(self, frame: bytes) -> None:
        self.frames.append(orjson.loads(frame))

    def soon(self, write: Callable[[], None]) -> None:
        self._due.append(write)

    def close(self, code: int, reason: str) -> None:
        raise AssertionError(f"closed: {code} {reason}")

    def end(self) -> list[dict[str, Any]]:
        """End the turn; returns all frames since the last one."""
        due, self._due = self._due, []
        for write in due:
            write()
        frames, self.frames = self.frames, []
        return frames


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house(partitions=4) as opened:
        yield opened


class Listener:
    def __init__(self, house: House) -> None:
        self.house = house
        self.turn = Turns()
        self.session = ClientSession(house.use_cases, self.turn, house.principal)

    async def subscribe(self, **more: object) -> str:
        request = {"type": "subscribe", "ref": 1, "filters": [EVERYTHING], **more}
        await self.session.receive(orjson.dumps(request))
        (answer,) = self.turn.end()
        return str(answer["subscription"])

    async def say(self, *payloads: bytes) -> None:
        """Append, over all partitions."""
        house = self.house
        routes = [
            house.edge.route(house.principal, f"{DOMAIN}/devices/d{number}/telemetry/t")
            for number in range(len(payloads))
        ]
        assert len(payloads) < 8 or len({route.partition for route in routes}) == 4
        await house.say(*map(house.edge.admit, routes, payloads, [house.clock.now()] * len(payloads)))


@pytest.fixture
def client(house: House) -> Listener:
    return Listener(house)


async def test_all_partitions_share_a_frame_whose_cursor_resumes_behind_it(client: Listener) -> None:
    await client.subscribe()
    await client.say(*(b"%d" % number for number in range(8)))
    await client.say(b"8")
    (frame,) = client.turn.end()
    assert sorted(values(frame["messages"])) == list(range(9))
    later = Listener(client.house)
    await later.subscribe(**{"from": frame["cursor"]})
    await client.say(b"9")
    (next_one,) = client.turn.end()
    assert values(next_one["messages"]) == [9]
    assert [values(each["messages"]) for each in later.turn.end()] == [[9]]


async def test_each_subscription_gets_its_own_and_wants_with_cursors_come_at_once(client: Listener) -> None:
    names = [await client.subscribe(), await client.subscribe(cursors="message")]
    await client.say(b"1", b"2")
    frames = client.turn.end()
    got = {name: [frame for frame in frames if frame["subscription"] == name] for name in names}
    (joined,) = got[names[0]]
    assert sorted(values(joined["messages"])) == [1, 2]
    assert sorted(value for frame in got[names[1]] for value in values(frame["messages"])) == [1, 2]
    assert all(len(frame["cursors"]) == len(frame["messages"]) for frame in got[names[1]])


async def test_frames_stay_small(client: Listener) -> None:
    await client.subscribe()
    payloads = [b'{"n":%d,"text":"%b"}' % (number, b"x" * 30_000) for number in range(6)]
    await client.say(*payloads)
    frames = client.turn.end()
    numbers = [message["payload"]["n"] for frame in frames for message in frame["messages"]]
    assert sorted(numbers) == list(range(6))
    assert len(frames) >= 3
    assert all(len(orjson.dumps(frame)) < JOINED_BYTES + 2_000 for frame in frames)


async def test_a_gap_is_told_before_a_cursor_that_has_passed_it(client: Listener) -> None:
    name = await client.subscribe()
    await client.say(b"1")
    (reader,) = next(iter(client.house.feed._groups.values())).readers
    client.session.missed(reader, Gap(Partition(DOMAIN, "telemetry", 0), 1, 1, "retention"))
    assert [frame["type"] for frame in client.turn.end()] == ["gap", "messages"]
    assert name == "s1"


async def test_the_answer_to_unsubscribe_comes_behind_what_was_delivered(client: Listener) -> None:
    name = await client.subscribe()
    await client.say(b"1", b"2")
    await client.session.receive(orjson.dumps({"type": "unsubscribe", "ref": 2, "subscription": name}))
    *messages, answer = client.turn.end()
    assert sorted(value for frame in messages for value in values(frame["messages"])) == [1, 2]
    assert answer["cursor"] == messages[-1]["cursor"]


async def test_a_client_that_is_told_to_come_back_has_got_what_its_cursor_says(client: Listener) -> None:
    name = await client.subscribe()
    await client.say(b"1")
    cursors = client.session.cursors()
    (frame,) = client.turn.end()
    assert cursors == {name: frame["cursor"]}
    await client.say(b"2")
    client.session.close()
    assert client.turn.end() == []
