"""One frame for what a group gets in one turn, and nothing told too early or too late because of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import chain
from typing import Any

import orjson
import pytest

from iotsphere.adapters.client.delivery import JOINED_BYTES
from iotsphere.adapters.client.frames import SharedFrame
from iotsphere.adapters.client.session import ClientSession
from iotsphere.entities.position import Gap, Partition
from iotsphere.entities.principal import Principal
from tests.client.house import EVERYTHING, House, open_house, values
from tests.use_cases.stage import DOMAIN, soon


class Written:
    """An outbox that keeps what is written, and which frames others may share."""

    def __init__(self) -> None:
        self.full = False
        self.frames: list[dict[str, Any]] = []
        self.shared: list[SharedFrame] = []

    def write(self, frame: bytes) -> None:
        self.frames.append(orjson.loads(frame))

    def write_shared(self, frame: SharedFrame) -> None:
        self.shared.append(frame)
        self.write(frame.text)

    def close(self, code: int, reason: str) -> None:
        raise AssertionError(f"closed: {code} {reason}")

    def take(self) -> list[dict[str, Any]]:
        """All frames since the last call."""
        frames, self.frames = self.frames, []
        return frames


@pytest.fixture(autouse=True)
def no_round_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a test has it gather."""
    monkeypatch.setattr("iotsphere.use_cases.round.LINGER_S", 3_600.0)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house(partitions=4) as opened:
        yield opened


class Listener:
    def __init__(self, house: House, principal: Principal | None = None) -> None:
        self.house = house
        self.out = Written()
        self.session = ClientSession(house.use_cases, self.out, principal or house.principal)

    async def subscribe(self, **more: object) -> str:
        request = {"type": "subscribe", "ref": 1, "filters": [EVERYTHING], **more}
        await self.session.receive(orjson.dumps(request))
        (answer,) = self.out.take()
        assert answer["type"] == "ok", answer
        return str(answer["subscription"])

    async def say(self, *payloads: bytes) -> None:
        """Append, over all partitions; the feed has it, and the turn has not ended."""
        house = self.house
        routes = [
            house.edge.route(house.principal, f"{DOMAIN}/devices/d{number}/telemetry/t")
            for number in range(len(payloads))
        ]
        assert len(payloads) < 8 or len({route.partition for route in routes}) == 4
        await house.say(*map(house.edge.admit, routes, payloads, [house.clock.now()] * len(payloads)))

    def pending(self) -> int:
        """How many messages wait for the end of the turn."""
        (group,) = self.house.feed._groups.values()
        return group.pending.count if group.pending is not None else 0

    async def end_turn(self) -> list[dict[str, Any]]:
        """The frames since the last call, those of this turn included."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return self.out.take()


@pytest.fixture
def client(house: House) -> Listener:
    return Listener(house)


def gather(client: Listener) -> None:
    """Have rounds wait for each other, as at a high rate, until a test ends them."""
    (group,) = client.house.feed._groups.values()
    assert group.outlet is not None
    outlet = group.outlet
    outlet._rate = 1e9
    outlet._since = asyncio.get_running_loop().time() + 3_600


def end_round(client: Listener) -> list[dict[str, Any]]:
    (group,) = client.house.feed._groups.values()
    group.flush()
    gather(client)
    return client.out.take()


async def test_all_partitions_share_a_frame_whose_cursor_resumes_behind_it(client: Listener) -> None:
    await client.subscribe()
    gather(client)
    await client.say(*(b"%d" % number for number in range(8)))
    await client.say(b"8")
    (frame,) = end_round(client)
    assert sorted(values(frame["messages"])) == list(range(9))
    later = Listener(client.house)
    await later.subscribe(**{"from": frame["cursor"]})
    await client.say(b"9")
    end_round(client)
    await soon(lambda: later.out.frames, "it has caught up, or got the round")
    assert [values(each["messages"]) for each in later.out.take()] == [[9]]


async def test_who_has_the_same_principal_and_filters_shares_the_bytes(house: House, client: Listener) -> None:
    other = Listener(house, Principal("user", "ada", DOMAIN, house.principal.grants))
    same, named = Listener(house), Listener(house)
    await named.session.receive(b'{"type":"subscribe","ref":1,"filters":["iotsphere/nothing/here"]}')
    named.out.take()
    await named.session.receive(orjson.dumps({"type": "unsubscribe", "ref": 2, "subscription": "s1"}))
    named.out.take()
    names = [await one.subscribe() for one in (client, same, other, named)]
    assert names == ["s1", "s1", "s1", "s2"]
    gather(client)
    await client.say(b"1", b"2", b"3")
    end_round(client)
    frames = [one.out.shared for one in (client, same, other, named)]
    assert [len(one) for one in frames] == [1, 1, 1, 1]
    assert frames[0][0] is frames[1][0]
    mine, theirs, second = (orjson.loads(one[0].text) for one in (frames[0], frames[2], frames[3]))
    assert mine["messages"] == theirs["messages"] == second["messages"]
    assert mine["cursor"] == second["cursor"]
    assert (mine["subscription"], second["subscription"]) == ("s1", "s2")
    assert mine["cursor"] != theirs["cursor"], "a cursor is good for one principal"
    await other.session.receive(
        orjson.dumps({"type": "subscribe", "ref": 3, "filters": [EVERYTHING], "from": mine["cursor"]})
    )
    assert other.out.frames[-1]["code"] == "cursor_invalid"


async def test_who_wants_cursors_with_each_gets_them_beside_the_others(client: Listener) -> None:
    names = [await client.subscribe(), await client.subscribe(cursors="message")]
    gather(client)
    await client.say(b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8")
    frames = end_round(client)
    got = {name: [frame for frame in frames if frame["subscription"] == name] for name in names}
    (joined,) = got[names[0]]
    assert sorted(values(joined["messages"])) == list(range(1, 9))
    assert sorted(value for frame in got[names[1]] for value in values(frame["messages"])) == list(range(1, 9))
    cursors = [cursor for frame in got[names[1]] for cursor in frame["cursors"]]
    seen = [value for frame in got[names[1]] for value in values(frame["messages"])]
    for taken, cursor in enumerate(cursors, 1):
        later = Listener(client.house)
        await later.subscribe(**{"from": cursor})
        rest: list[object] = []
        while len(rest) < len(seen) - taken:
            await asyncio.sleep(0)
            rest += [value for frame in later.out.take() for value in values(frame["messages"])]
        assert sorted(map(str, rest)) == sorted(map(str, seen[taken:]))
        later.session.close()


async def test_frames_stay_small_and_the_cursor_of_each_resumes_behind_it(client: Listener) -> None:
    await client.subscribe()
    gather(client)
    payloads = [b'{"n":%d,"text":"%b"}' % (number, b"x" * 30_000) for number in range(6)]
    await client.say(*payloads)
    frames = end_round(client)
    numbers: list[list[int]] = [[message["payload"]["n"] for message in frame["messages"]] for frame in frames]
    assert sorted(chain(*numbers)) == list(range(6))
    assert len(frames) >= 3
    assert all(len(orjson.dumps(frame)) < JOINED_BYTES + 2_000 for frame in frames)
    for place, frame in enumerate(frames[:-1], 1):
        later = Listener(client.house)
        await later.subscribe(**{"from": frame["cursor"]})
        rest: list[int] = []
        while len(rest) < sum(map(len, numbers[place:])):
            await asyncio.sleep(0)
            rest += [message["payload"]["n"] for one in later.out.take() for message in one["messages"]]
        assert sorted(rest) == sorted(chain(*numbers[place:]))
        later.session.close()


async def test_a_gap_is_told_before_a_cursor_that_has_passed_it(client: Listener) -> None:
    name = await client.subscribe()
    gather(client)
    await client.say(b"1")
    (reader,) = next(iter(client.house.feed._groups.values())).readers
    client.session.missed(reader, Gap(Partition(DOMAIN, "telemetry", 0), 1, 1, "retention"))
    assert [frame["type"] for frame in end_round(client)] == ["gap", "messages"]
    assert name == "s1"


async def test_the_cursor_at_the_end_says_nothing_of_what_still_waits(client: Listener) -> None:
    name = await client.subscribe()
    gather(client)
    await client.say(b"1", b"2")
    end_round(client)
    await client.say(b"3", b"4")
    assert client.pending() == 2
    cursors = client.session.cursors()
    await client.session.receive(orjson.dumps({"type": "unsubscribe", "ref": 2, "subscription": name}))
    (answer,) = client.out.take()
    assert cursors == {name: answer["cursor"]}
    later = Listener(client.house)
    await later.subscribe(**{"from": answer["cursor"]})
    got: list[object] = []
    while len(got) < 2:
        await asyncio.sleep(0)
        got += [value for frame in later.out.take() for value in values(frame["messages"])]
    assert sorted(map(str, got)) == ["3", "4"]


async def test_a_client_that_is_full_reads_its_round_from_the_log(client: Listener) -> None:
    name = await client.subscribe()
    gather(client)
    await client.say(b"1", b"2", b"3")
    client.out.full = True
    assert [frame["type"] for frame in end_round(client)] == ["lagging"]
    client.out.full = False
    await client.say(b"4")
    client.session.has_room()
    got: list[object] = []
    while len(got) < 4:
        await asyncio.sleep(0)
        got += [value for one in client.out.take() if one["type"] == "messages" for value in values(one["messages"])]
    assert sorted(map(str, got)) == ["1", "2", "3", "4"]
    assert name == "s1"


async def test_who_is_closed_gets_nothing_more(client: Listener) -> None:
    await client.subscribe()
    gather(client)
    await client.say(b"1")
    client.session.close()
    assert await client.end_turn() == []
