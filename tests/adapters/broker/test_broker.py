"""The adapter API, the same on both wires: within the process, and over a WebSocket to a running gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import pytest

from iotsphere.adapters.broker import stream as broker_stream
from iotsphere.adapters.broker.broker import MessageBrokerAdapter
from iotsphere.adapters.broker.session_wire import SessionWire
from iotsphere.adapters.broker.stream import Delivery, MessageStream
from iotsphere.drivers.websocket_wire import WebSocketWire
from iotsphere.entities.errors import (
    Conflict,
    CursorInvalid,
    FilterInvalid,
    Forbidden,
    MessageRefused,
    MessagesMissed,
    RequestInvalid,
    ShuttingDown,
    TopicInvalid,
)
from iotsphere.entities.message import Message
from iotsphere.entities.position import Gap
from iotsphere.entities.principal import Principal, parse_grant
from iotsphere.use_cases.access.rate_limit import Rate
from tests.client.house import ALL, EVERYTHING, TOPIC, House, open_door, open_house
from tests.support.waiting import until
from tests.use_cases.stage import DOMAIN

OTHER = f"{DOMAIN}/devices/d2/telemetry/temperature"
TELEMETRY = f"{DOMAIN}/devices/+/telemetry/#"
Open = Callable[..., AbstractAsyncContextManager[MessageBrokerAdapter]]


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house(visibility=1_000) as opened:
        yield opened


@pytest.fixture(params=["in-process", "websocket"])
async def connect(request: pytest.FixtureRequest, house: House) -> AsyncIterator[Open]:
    """How to get a broker. ``grants``: of the user Ada, who has all rights by default."""
    async with AsyncExitStack() as stack:
        if request.param == "websocket":
            door = await stack.enter_async_context(open_door(house))

        def connect(*grants: str) -> MessageBrokerAdapter:
            if request.param == "websocket":
                return MessageBrokerAdapter(WebSocketWire(door.url, house.token(grants=grants or ALL)))
            parsed = tuple(parse_grant(text, domain=DOMAIN) for text in grants or ALL)
            return MessageBrokerAdapter(SessionWire(house.use_cases, Principal("user", "ada", DOMAIN, parsed)))

        yield connect


@pytest.fixture
async def broker(connect: Open) -> AsyncIterator[MessageBrokerAdapter]:
    async with connect() as opened:
        yield opened


async def take(stream: MessageStream, count: int) -> list[Message]:
    """The next messages; fails when they do not come."""
    async with asyncio.timeout(60):
        return [await anext(stream) for _ in range(count)]


async def numbers(stream: MessageStream, count: int) -> list[int]:
    return [message.json()["value"] for message in await take(stream, count)]


async def publish(broker: MessageBrokerAdapter, *values: int, topic: str = TOPIC) -> None:
    for value in values:
        await broker.publish(topic, value)


# Publishing


async def test_a_receipt_says_where_the_message_is(broker: MessageBrokerAdapter, house: House) -> None:
    first = await broker.publish(TOPIC, {"value": 21.5})
    again = await broker.publish(TOPIC, {"value": 21.5}, message_id=first.message_id)
    other = await broker.publish(TOPIC, {"value": 22})
    (entry,) = [e for e in house.entries() if e.record.message_id == first.message_id]
    partition, position = entry.record.partition, entry.position
    assert first.position == f"telemetry/{partition.number}/{position.epoch}-1"
    assert (first.duplicate, again.duplicate, other.duplicate) == (False, True, False)
    assert again.position == first.position
    assert other.position == f"telemetry/{partition.number}/{position.epoch}-2"


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (21.5, {"value": 21.5}),
        ("on", {"value": "on"}),
        (None, {"value": None}),
        ([1, 2], {"samples": [1, 2]}),
        ({"big": 2**63 - 1}, {"big": 2**63 - 1}),
        (b'{"a": [1.0, "\xc3\xa9"]}', {"a": [1.0, "é"]}),
        (b" 17 ", {"value": 17}),
    ],
)
async def test_payloads_arrive_exactly(broker: MessageBrokerAdapter, payload: object, expected: object) -> None:
    stream = broker.subscribe(TOPIC)
    await broker.publish(TOPIC, payload)  # type: ignore[arg-type]  # each is a Json or bytes
    (message,) = await take(stream, 1)
    assert message.json() == expected
    assert message.metadata.source == "ada"
    assert message.topic == TOPIC


async def test_a_whole_message_travels_unchanged(broker: MessageBrokerAdapter) -> None:
    stream = broker.subscribe(EVERYTHING)
    await broker.publish(
        f"{DOMAIN}/devices/d1/commands/request",
        {"on": True},
        correlation_id="0190a1b2-0000-7000-8000-000000000001",
        expires_at="2027-01-01T00:00:00Z",
    )
    (message,) = await take(stream, 1)
    assert message.metadata.message_type == "command"
    assert message.metadata.correlation_id == "0190a1b2-0000-7000-8000-000000000001"
    assert message.metadata.expires_at == "2027-01-01T00:00:00.000Z"
    receipt = await broker.publish(message.topic, message)
    assert receipt == (message.metadata.message_id, receipt.position, True, None)


@pytest.mark.parametrize(
    ("topic", "payload", "error"),
    [
        (f"{DOMAIN}/nowhere/x", 1, TopicInvalid),
        ("other/devices/d1/telemetry", 1, Forbidden),
        (TOPIC, {"$where": 1}, MessageRefused),
        (TOPIC, b'{"a":1,"a":2}', MessageRefused),
        (TOPIC, b"{no json", MessageRefused),
        (TOPIC, float("nan"), RequestInvalid),
        (TOPIC, {"at": object()}, RequestInvalid),
        (TOPIC, "x" * 262_143, MessageRefused),
        (TOPIC, "x" * 300_000, MessageRefused),
    ],
)
async def test_refusals_are_raised(
    broker: MessageBrokerAdapter, topic: str, payload: object, error: type[Exception]
) -> None:
    with pytest.raises(error):
        async with asyncio.timeout(60):
            await broker.publish(topic, payload)  # type: ignore[arg-type]  # on purpose
    assert (await broker.publish(TOPIC, 1)).duplicate is False


async def test_publishing_needs_a_grant(connect: Open, house: House) -> None:
    async with connect(f"subscribe:{EVERYTHING}") as broker:
        with pytest.raises(Forbidden, match="ask the operator for a token with that grant"):
            await broker.publish(TOPIC, 1)
    (letter,) = house.entries(lambda topic: topic == f"{DOMAIN}/system/dead-letters")
    assert b'"reason":"acl_denied"' in letter.record.body


async def test_many_publish_at_once_in_order(broker: MessageBrokerAdapter, house: House) -> None:
    receipts = await asyncio.gather(*(broker.publish(TOPIC, number) for number in range(1_000)))
    assert len({receipt.message_id for receipt in receipts}) == 1_000
    bodies = [entry.record.body for entry in house.entries()]
    assert [int(body.rpartition(b":")[2].rstrip(b"}")) for body in bodies] == list(range(1_000))


# Subscribing


async def test_what_is_published_after_the_call_is_received(broker: MessageBrokerAdapter) -> None:
    await publish(broker, 1)
    stream = broker.subscribe(TELEMETRY)
    await publish(broker, 2, 3)
    assert await numbers(stream, 2) == [2, 3]


async def test_starts(broker: MessageBrokerAdapter, house: House) -> None:
    await publish(broker, 1)
    house.clock.advance(1_000)
    noon = "2026-01-01T00:00:01.000Z"
    await publish(broker, 2, 3)
    await publish(broker, 4, topic=OTHER)
    assert sorted(await numbers(broker.subscribe(TELEMETRY, from_="earliest"), 4)) == [1, 2, 3, 4]
    assert sorted(await numbers(broker.subscribe(TELEMETRY, from_=noon), 3)) == [2, 3, 4]
    latest = broker.subscribe(TELEMETRY, from_="latest")
    assert sorted(await numbers(latest, 2)) == [3, 4]
    await publish(broker, 5)
    assert await numbers(latest, 1) == [5]


async def test_any_cursor_leads_to_exactly_the_rest(broker: MessageBrokerAdapter) -> None:
    stream = await broker.subscribe(TELEMETRY, from_="earliest").opened()
    await asyncio.gather(*(publish(broker, *range(start, start + 10)) for start in (0, 100)))
    await publish(broker, *range(200, 205), topic=OTHER)
    cursors, seen = [stream.cursor], []
    for _ in range(25):
        seen += await numbers(stream, 1)
        cursors.append(stream.cursor)
    assert len(set(cursors)) == 26
    for taken, cursor in enumerate(cursors):
        assert cursor is not None
        async with broker.subscribe(TELEMETRY, from_=cursor) as again:
            rest = await numbers(again, 25 - taken)
            assert sorted(rest) == sorted(seen[taken:])
            assert again.cursor == cursors[-1]


async def test_a_cursor_is_for_its_filters_only(broker: MessageBrokerAdapter) -> None:
    stream = await broker.subscribe(TELEMETRY).opened()
    assert stream.cursor is not None
    with pytest.raises(CursorInvalid):
        await take(broker.subscribe(EVERYTHING, from_=stream.cursor), 1)
    with pytest.raises(CursorInvalid):
        await take(broker.subscribe(TELEMETRY, from_="A" * 12 + stream.cursor[12:]), 1)


async def test_foreign_and_broken_filters_are_refused(connect: Open, broker: MessageBrokerAdapter) -> None:
    with pytest.raises(FilterInvalid):
        broker.subscribe("#")
    with pytest.raises(RequestInvalid):
        broker.subscribe()
    with pytest.raises(Forbidden):
        await take(broker.subscribe("other/#"), 1)
    with pytest.raises(Forbidden):
        await take(broker.subscribe(TELEMETRY, "other/#"), 1)
    async with connect(f"subscribe:{TOPIC}") as narrow:
        with pytest.raises(Forbidden):
            await narrow.subscribe(TELEMETRY).opened()
        assert await narrow.subscribe(TOPIC).opened()


async def test_a_gap_is_raised_once_with_its_range(broker: MessageBrokerAdapter, house: House) -> None:
    stream = await broker.subscribe(TOPIC).opened()
    cursor = stream.cursor
    assert cursor is not None
    await publish(broker, *range(1, 11))
    (partition,) = {entry.record.partition for entry in house.entries()}
    house.log.shelf(partition).trim(6)
    late = broker.subscribe(TOPIC, from_=cursor)
    expected = Gap(partition, 1, 6, "retention")
    with pytest.raises(MessagesMissed, match="6 messages are gone") as raised:
        await take(late, 1)
    assert raised.value.facts["gaps"] == (expected,)
    assert await numbers(late, 4) == [7, 8, 9, 10]
    told: list[Gap] = []
    listening = broker.subscribe(TOPIC, from_=cursor, on_gap=told.append)
    assert await numbers(listening, 4) == [7, 8, 9, 10]
    assert told == late.missed == listening.missed == [expected]


async def test_leaving_ends_the_iteration(broker: MessageBrokerAdapter, house: House) -> None:
    async with broker.subscribe(TOPIC) as stream:
        await publish(broker, 1)
        async for message in stream:
            assert message.json() == {"value": 1}
            break
    assert [message async for message in stream] == []
    await publish(broker, 2)
    assert house.feed._groups == {}


async def test_closing_the_broker_ends_everything(connect: Open, house: House) -> None:
    async with connect() as broker:
        stream = await broker.subscribe(TOPIC).opened()
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
    with pytest.raises(StopAsyncIteration):
        await waiting
    with pytest.raises(ShuttingDown):
        await broker.publish(TOPIC, 1)
    await until(lambda: house.feed._groups == {}, "the gateway forgot it")


# Slow consumers


async def test_a_slow_consumer_gets_everything_and_its_buffer_stays_small(
    broker: MessageBrokerAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_stream, "MAX_BUFFERED", 50)
    stream = await broker.subscribe(TOPIC).opened()
    largest = 0
    for start in range(0, 2_000, 100):
        await asyncio.gather(*(broker.publish(TOPIC, number) for number in range(start, start + 100)))
        largest = max(largest, len(stream._buffer))
    assert largest <= 50 + 500  # what was there already, and one frame
    got = []
    for number in range(2_000):
        got += await numbers(stream, 1)
        if number % 100 == 0:
            await broker.publish(OTHER, number)
    assert got == list(range(2_000))


async def test_a_slow_consumer_keeps_nobody_else_waiting(
    broker: MessageBrokerAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_stream, "MAX_BUFFERED", 10)
    slow = await broker.subscribe(TOPIC).opened()
    quick = await broker.subscribe(TOPIC, OTHER).opened()
    await publish(broker, *range(100))
    assert await numbers(quick, 100) == list(range(100))
    await publish(broker, 100, topic=OTHER)
    assert await numbers(quick, 1) == [100]
    assert await numbers(slow, 100) == list(range(100))


async def test_latest_skips_what_is_outdated(
    broker: MessageBrokerAdapter, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_stream, "MAX_BUFFERED", 10)
    stream = await broker.subscribe(TELEMETRY, policy="latest").opened()
    for number in range(300):
        house.clock.advance(1)
        await publish(broker, number, topic=(TOPIC, OTHER)[number % 2])
    got: dict[str, int] = {}
    count = 0
    while got.get(TOPIC) != 298 or got.get(OTHER) != 299:
        (message,) = await take(stream, 1)
        got[message.topic] = message.json()["value"]
        count += 1
    assert count < 300


async def test_a_gateway_that_asks_to_slow_down_is_obeyed() -> None:
    async with open_house(rate=Rate(messages=200, burst=0.1)) as house:
        broker = MessageBrokerAdapter(SessionWire(house.use_cases, house.principal))
        async with broker, asyncio.timeout(60):
            await asyncio.gather(*(broker.publish(TOPIC, number) for number in range(100)))
        assert len(house.entries()) == 100
        assert house.use_cases.rates.refused > 0


# Groups


async def deliveries(stream: AsyncIterator[Delivery], count: int) -> list[Delivery]:
    async with asyncio.timeout(60):
        return [await anext(stream) for _ in range(count)]


async def test_members_share_and_acknowledge(connect: Open, broker: MessageBrokerAdapter, house: House) -> None:
    async with connect() as second:
        one = await broker.subscribe(TELEMETRY, group="billing", credit=3).opened()
        two = await second.subscribe(TELEMETRY, group="billing", credit=3).opened()
        await publish(broker, *range(6))
        got = [*await deliveries(one, 3), *await deliveries(two, 3)]
        assert sorted(delivery.message.json()["value"] for delivery in got) == list(range(6))
        assert {delivery.attempt for delivery in got} == {1}
        await publish(broker, 6)
        await got[3].ack()
        (more,) = await deliveries(two, 1)
        assert more.message.json() == {"value": 6}
        for delivery in (*got, more):
            await delivery.ack()
        backlog = await house.queue.backlog(f"{DOMAIN}/billing")
        assert (sum(b.pending for b in backlog), sum(b.acknowledged for b in backlog)) == (0, 7)


async def test_retry_and_lapse_deliver_again(broker: MessageBrokerAdapter, house: House) -> None:
    stream = await broker.subscribe(TELEMETRY, group="billing").opened()
    await publish(broker, 1, 2)
    back, lapsed = await deliveries(stream, 2)
    await back.retry(in_=0.5)
    house.clock.advance(500)
    (again,) = await deliveries(stream, 1)
    assert (again.message, again.attempt) == (back.message, 2)
    await again.ack()
    house.clock.advance(501)
    (late,) = await deliveries(stream, 1)
    assert (late.message, late.attempt) == (lapsed.message, 2)
    await late.ack()


async def test_a_group_is_bound_to_its_filters(broker: MessageBrokerAdapter) -> None:
    await broker.subscribe(TELEMETRY, group="billing").opened()
    with pytest.raises(Conflict):
        await broker.subscribe(TOPIC, group="billing").opened()


async def test_a_closed_group_stream_takes_no_acknowledgement(broker: MessageBrokerAdapter) -> None:
    stream = await broker.subscribe(TELEMETRY, group="billing").opened()
    await publish(broker, 1)
    (delivery,) = await deliveries(stream, 1)
    await stream.aclose()
    with pytest.raises(RequestInvalid, match="before closing"):
        await delivery.ack()
