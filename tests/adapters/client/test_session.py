"""One client's session without a socket: what it answers, what it bounds, and what it leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
import pytest

from iotsphere.adapters.client import listening as client_listening
from iotsphere.adapters.client import opening
from iotsphere.adapters.client import publishing as client_publishing
from iotsphere.adapters.client.frames import SharedFrame
from iotsphere.adapters.client.session import ClientSession
from iotsphere.entities.errors import LogFull, LogUnavailable
from iotsphere.entities.message import Record
from iotsphere.entities.position import Partition
from iotsphere.entities.principal import parse_grant
from iotsphere.use_cases.access.rate_limit import Rate
from iotsphere.use_cases.ports.message_log import Appended
from tests.client.house import EVERYTHING, TOPIC, House, open_house, values
from tests.support.waiting import until
from tests.use_cases.stage import DOMAIN, soon

LETTERS = f"{DOMAIN}/system/dead-letters"


class Outbox:
    """Keeps what is written; full when a test says so."""

    def __init__(self) -> None:
        self.full = False
        self.frames: list[dict[str, Any]] = []
        self.closed: tuple[int, str] | None = None

    def write(self, frame: bytes) -> None:
        self.frames.append(orjson.loads(frame))

    def write_shared(self, frame: SharedFrame) -> None:
        self.write(frame.text)

    def close(self, code: int, reason: str) -> None:
        self.closed = self.closed or (code, reason)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [frame for frame in self.frames if frame["type"] == kind]


class Client:
    """A session with its outbox."""

    def __init__(self, house: House, *grants: str) -> None:
        self.outbox = Outbox()
        principal = house.principal
        if grants:
            parsed = tuple(parse_grant(text, domain=DOMAIN) for text in grants)
            principal = type(principal)("user", "ada", DOMAIN, parsed)
        self.session = ClientSession(house.use_cases, self.outbox, principal)
        self.refs = 0

    async def ask(self, kind: str, **members: object) -> dict[str, Any]:
        """Carry out one request, and give its answer once it is there."""
        self.refs += 1
        ref = self.refs
        await self.session.receive(orjson.dumps({"type": kind, "ref": ref, **members}))
        await until(lambda: self.answers(ref), f"request {ref} is answered")
        (answer,) = self.answers(ref)
        return answer

    def answers(self, ref: object) -> list[dict[str, Any]]:
        return [frame for frame in self.outbox.frames if frame.get("ref") == ref]

    @property
    def received(self) -> list[Any]:
        return values([message for frame in self.outbox.of("messages") for message in frame["messages"]])


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house(partitions=1) as opened:
        yield opened


@pytest.fixture
def client(house: House) -> Client:
    return Client(house)


async def test_each_request_gets_exactly_one_answer_with_its_ref(client: Client) -> None:
    requests: list[dict[str, object]] = [
        {"type": "ping"},
        {"type": "subscribe", "filters": [EVERYTHING]},
        {"type": "subscribe", "filters": ["#"]},
        {"type": "publish", "topic": TOPIC, "payload": 1},
        {"type": "publish", "topic": "nowhere", "payload": 1},
        {"type": "publish", "topic": TOPIC, "payload": {"$x": 1}},
        {"type": "publish", "topic": TOPIC, "payload": 1, "expiresAt": "tomorrow"},
        {"type": "publish", "topic": TOPIC, "payload": 1, "messageId": "17"},
        {"type": "unsubscribe", "subscription": "s9"},
        {"type": "ack", "subscription": "s1", "deliveries": ["x"]},
        {"type": "ack", "subscription": "s9", "deliveries": ["x"]},
        {"type": "nonsense"},
    ]
    for ref, request in enumerate(requests):
        await client.session.receive(orjson.dumps({**request, "ref": f"r{ref}"}))
    await until(lambda: all(client.answers(f"r{ref}") for ref in range(len(requests))), "everything is answered")
    kinds = [[answer["type"] for answer in client.answers(f"r{ref}")] for ref in range(len(requests))]
    assert [len(each) for each in kinds] == [1] * len(requests)
    assert [each[0] for each in kinds] == ["ok", "ok", "error", "ok"] + ["error"] * 8
    assert client.outbox.closed is None


async def test_what_is_no_strict_json_is_a_dead_letter_with_its_reason(client: Client, house: House) -> None:
    raw = b'{"type":"publish","ref":5,"topic":"%b","payload":{"a":1,"a":2}}' % TOPIC.encode()
    await client.session.receive(raw)
    await until(lambda: client.answers(5), "it is answered")
    assert client.answers(5)[0]["code"] == "json_duplicate_key"
    (letter,) = house.entries(lambda topic: topic == LETTERS)
    payload = orjson.loads(letter.record.body)["payload"]
    assert (payload["reason"], payload["topic"], payload["source"]) == ("json_duplicate_key", TOPIC, "operator")


async def test_a_dead_letter_is_durable_before_its_refusal_is_told(
    client: Client, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, gate = house.log.append, asyncio.Event()

    async def slowly(records: Sequence[Record]) -> Appended:
        await gate.wait()
        return await append(records)

    monkeypatch.setattr(house.log, "append", slowly)
    await client.session.receive(orjson.dumps({"type": "publish", "ref": 1, "topic": "nowhere", "payload": 1}))
    await client.session.receive(orjson.dumps({"type": "ping", "ref": 2}))
    assert [frame["ref"] for frame in client.outbox.frames] == [2]
    gate.set()
    await until(lambda: client.answers(1), "it is told")
    assert len(house.entries(lambda topic: topic == LETTERS)) == 1


async def test_publications_wait_while_too_many_are_unanswered(
    client: Client, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_publishing, "MAX_OUTSTANDING", 3)
    append, gate = house.log.append, asyncio.Event()

    async def slowly(records: Sequence[Record]) -> Appended:
        await gate.wait()
        return await append(records)

    monkeypatch.setattr(house.log, "append", slowly)

    async def publish() -> None:
        for ref in range(5):
            await client.session.receive(orjson.dumps({"type": "publish", "ref": ref, "topic": TOPIC, "payload": ref}))

    publishing = asyncio.ensure_future(publish())
    for _ in range(20):
        await asyncio.sleep(0)
    assert client.session._publish._outstanding == 3
    assert not publishing.done()
    gate.set()
    await publishing
    await until(lambda: len(client.outbox.frames) == 5, "all are answered")
    assert [frame["ref"] for frame in client.outbox.frames] == list(range(5))


async def test_a_full_log_is_told_with_retry(client: Client, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(_: object) -> Appended:
        raise LogFull("the disk is full; make room")

    monkeypatch.setattr(house.log, "append", full)
    answer = await client.ask("publish", topic=TOPIC, payload=1)
    assert (answer["code"], answer["retry"]) == ("log_full", True)
    assert client.session._publish.published == 0


async def test_floods_are_refused_then_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_publishing, "MAX_STRIKES", 20)
    monkeypatch.setattr(client_publishing, "FORGIVEN_PER_SECOND", 0)
    async with open_house(rate=Rate(messages=0.01, burst=500)) as house:  # five, and no more comes with time
        client = Client(house)
        for ref in range(5 + 1 + 20):  # only who was told to wait is at fault
            await client.session.receive(orjson.dumps({"type": "publish", "ref": ref, "topic": TOPIC, "payload": 1}))
        assert client.outbox.closed is None
        bad = b'{"type":"publish","ref":99,"topic":"t","payload":{"a":1,"a":2}}'
        await client.session.receive(bad)
        assert client.answers(99)[0]["code"] == "rate_limited"
        assert client.outbox.closed == (4429, "too fast")
        await until(lambda: len(client.outbox.of("ok")) == 5, "the first ones are answered")
        errors = client.outbox.of("error")
        assert {error["code"] for error in errors} == {"rate_limited"}
        assert all(error["retry"] and error["retryAfter"] > 0 for error in errors)
        assert house.entries(lambda topic: topic == LETTERS) == []


async def test_subscriptions_are_bounded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "MAX_SUBSCRIPTIONS", 2)
    for _ in range(2):
        assert (await client.ask("subscribe", filters=[TOPIC]))["type"] == "ok"
    refused = await client.ask("subscribe", filters=[TOPIC])
    assert refused["code"] == "request_invalid"
    assert "join filters" in refused["message"]
    await client.ask("unsubscribe", subscription="s1")
    assert (await client.ask("subscribe", filters=[TOPIC]))["type"] == "ok"


async def test_a_session_that_was_closed_while_it_subscribed_leaves_nothing(
    client: Client, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, gate = house.log.read, asyncio.Event()

    async def slowly(*arguments: object) -> object:
        await gate.wait()
        return await read(*arguments)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(house.log, "read", slowly)
    request = orjson.dumps({"type": "subscribe", "ref": 1, "filters": [TOPIC], "from": "earliest"})
    subscribing = asyncio.ensure_future(client.session.receive(request))
    await soon(lambda: house.feed._groups, "it is looking up its start")
    client.session.close()
    gate.set()
    await subscribing
    assert house.feed._groups == {}
    assert client.outbox.frames == []


async def test_closing_ends_every_subscription(client: Client, house: House) -> None:
    await client.ask("subscribe", filters=[TOPIC])
    await client.ask("subscribe", filters=[TOPIC], group="billing")
    client.session.close()
    await house.say(house.edge.admit(house.edge.route(house.principal, TOPIC), b"1", 0))
    await soon(lambda: house.feed._listeners == set(), "the member is gone")
    assert client.outbox.of("messages") == client.outbox.of("deliveries") == []
    assert house.feed._groups == {}


async def test_room_is_given_to_another_subscription_first_each_time(client: Client) -> None:
    for _ in range(3):
        await client.ask("subscribe", filters=[TOPIC])
    resumed: list[str] = []
    for name, listening in client.session._listening.items():
        assert listening.reader is not None
        listening.reader.resume = lambda name=name: resumed.append(name)  # type: ignore[method-assign, misc]  # a spy
    for _ in range(3):
        client.session.has_room()
    assert resumed == ["s2", "s3", "s1", "s3", "s1", "s2", "s1", "s2", "s3"]


async def test_a_slow_client_is_told_once_and_again_when_it_has_caught_up(client: Client, house: House) -> None:
    await client.ask("subscribe", filters=[TOPIC])
    client.outbox.full = True
    for value in range(5):
        await house.say(house.edge.admit(house.edge.route(house.principal, TOPIC), b"%d" % value, 0))
    (told,) = client.outbox.of("lagging")
    assert (told["behind"], told["policy"], told["superseded"]) == (1, "complete", 0)
    client.outbox.full = False
    client.session.has_room()
    await soon(lambda: len(client.outbox.of("lagging")) == 2, "it has caught up")
    assert client.outbox.of("lagging")[1]["behind"] == 0
    assert client.received == [0, 1, 2, 3, 4]


async def test_lag_is_told_every_five_seconds_at_most(client: Client) -> None:
    await client.ask("subscribe", filters=[TOPIC])
    listening = client.session._listening["s1"]
    calls = [(0, 0), (9, 1), (9, 2), (0, 3), (0, 4), (9, 5), (9, 9)]
    told = [now for lag, now in calls if listening.lag_notice(lag, now) is not None]
    assert told == [1, 3, 9]


async def test_deliveries_wait_for_credit_and_room(client: Client, house: House) -> None:
    await client.ask("subscribe", filters=[TOPIC], group="billing", credit=2)
    for value in range(5):
        await house.say(house.edge.admit(house.edge.route(house.principal, TOPIC), b"%d" % value, 0))
    await soon(lambda: handed_out(client) == [0, 1], "two are handed out")
    client.outbox.full = True
    tokens = [item["delivery"] for frame in client.outbox.of("deliveries") for item in frame["deliveries"]]
    assert (await client.ask("ack", subscription="s1", deliveries=[*tokens, tokens[0]]))["acknowledged"] == 2
    await asyncio.sleep(0)
    assert handed_out(client) == [0, 1]
    client.outbox.full = False
    client.session.has_room()
    await soon(lambda: handed_out(client) == [0, 1, 2, 3], "two more are handed out")


def handed_out(client: Client) -> list[Any]:
    return values([item["message"] for frame in client.outbox.of("deliveries") for item in frame["deliveries"]])


async def test_large_deliveries_come_a_few_at_a_time(
    client: Client, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = orjson.dumps({"value": 1, "text": "x" * 200_000})
    route = house.edge.route(house.principal, TOPIC)
    await house.say(*(house.edge.admit(route, payload, 0) for _ in range(30)))
    takes: list[int] = []
    take = house.queue.take

    async def counting(group: str, consumer: str, limit: int, *more: int) -> object:
        takes.append(limit)
        return await take(group, consumer, min(limit, 10), *more)

    monkeypatch.setattr(house.queue, "take", counting)
    await client.ask("subscribe", filters=[TOPIC], group="billing", **{"from": "earliest"})
    await soon(lambda: len(handed_out(client)) == 30, "all are handed out")
    assert takes[0] == 100
    assert max(takes[1:12]) <= 3


async def test_a_group_goes_on_when_the_log_is_back(
    client: Client, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_listening, "RETRY_S", 0.01)
    take, failures = house.queue.take, [LogUnavailable("away"), LogUnavailable("away")]

    async def unsteady(*arguments: object) -> object:
        if failures:
            raise failures.pop()
        return await take(*arguments)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(house.queue, "take", unsteady)
    await house.say(house.edge.admit(house.edge.route(house.principal, TOPIC), b"1", 0))
    await client.ask("subscribe", filters=[TOPIC], group="billing", **{"from": "earliest"})
    await until(lambda: handed_out(client) == [1], "it goes on")
    assert client.outbox.of("ended") == []


async def test_gaps_are_told_by_the_session(client: Client, house: House) -> None:
    await client.ask("subscribe", filters=[TOPIC])
    client.outbox.full = True
    for value in range(5):
        await house.say(house.edge.admit(house.edge.route(house.principal, TOPIC), b"%d" % value, 0))
    house.log.shelf(Partition(DOMAIN, "telemetry", 0)).trim(3)
    client.outbox.full = False
    client.session.has_room()
    await soon(lambda: client.received == [3, 4], "the rest arrives")
    (gap,) = client.outbox.of("gap")
    assert gap["missed"] == [{"partition": "telemetry/0", "first": 1, "last": 3, "count": 3, "reason": "retention"}]
    kinds = [frame["type"] for frame in client.outbox.frames]
    assert kinds.index("gap") < kinds.index("messages")


async def test_commands_need_their_own_grant(house: House) -> None:
    request = {"topic": f"{DOMAIN}/devices/d1/commands/request", "payload": {"on": True}}
    publisher, commander = Client(house, f"publish:{EVERYTHING}"), Client(house, f"command:{EVERYTHING}")
    assert (await publisher.ask("publish", **request))["code"] == "forbidden"
    assert (await commander.ask("publish", **request))["type"] == "ok"
    assert (await commander.ask("publish", topic=TOPIC, payload=1))["code"] == "forbidden"
