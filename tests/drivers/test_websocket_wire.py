"""The WebSocket wire: lost connections, restarts and revoked tokens, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

import pytest

from iotsphere.adapters.broker.broker import MessageBrokerAdapter
from iotsphere.adapters.broker.stream import Stream
from iotsphere.drivers.websocket_wire import WebSocketWire
from iotsphere.entities.errors import Forbidden, RequestInvalid, TooManyConnections, Unauthenticated, Unavailable
from iotsphere.gateways.websocket import WebSocketGateway, WebSocketLimits
from tests.client.cutter import Cutter, open_cutter
from tests.client.house import TOPIC, Door, House, open_door, open_house
from tests.support.servers import free_port
from tests.support.waiting import until
from tests.use_cases.stage import DOMAIN

T = TypeVar("T")
TELEMETRY = f"{DOMAIN}/devices/+/telemetry/#"


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house(visibility=1_000) as opened:
        yield opened


@pytest.fixture
async def door(house: House) -> AsyncIterator[Door]:
    async with open_door(house) as opened:
        yield opened


@pytest.fixture
async def cutter(door: Door) -> AsyncIterator[Cutter]:
    async with open_cutter((door.host, door.port)) as opened:
        yield opened


@pytest.fixture
async def broker(cutter: Cutter, house: House) -> AsyncIterator[MessageBrokerAdapter]:
    async with MessageBrokerAdapter(WebSocketWire(cutter.url, house.token())) as opened:
        yield opened


async def take(stream: Stream[T], count: int) -> list[T]:
    async with asyncio.timeout(60):
        return [await anext(stream) for _ in range(count)]


async def test_cut_connections_cost_and_double_nothing(
    cutter: Cutter, broker: MessageBrokerAdapter, house: House
) -> None:
    stream = await broker.subscribe(TELEMETRY).opened()
    receipts = []
    for phase in range(4):
        numbers = range(phase * 150, phase * 150 + 150)
        publishing = [asyncio.ensure_future(broker.publish(TOPIC, number)) for number in numbers]
        await until(lambda least=phase * 150 + 20: len(house.entries()) > least, "some are in the log")  # type: ignore[misc]  # bound
        cutter.cut()
        receipts += await asyncio.wait_for(asyncio.gather(*publishing), 60)
    assert [message.json()["value"] for message in await take(stream, 600)] == list(range(600))
    assert len({receipt.position for receipt in receipts}) == 600
    assert len(house.entries()) == 600
    assert cutter.connections >= 4


async def test_an_answer_that_was_lost_is_asked_for_again_under_the_same_id(
    cutter: Cutter, broker: MessageBrokerAdapter, house: House
) -> None:
    cutter.answers.clear()
    publishing = asyncio.ensure_future(broker.publish(TOPIC, 1))
    await until(lambda: len(house.entries()) == 1, "the gateway has it")
    assert not publishing.done()
    cutter.cut()
    cutter.answers.set()
    receipt = await asyncio.wait_for(publishing, 60)
    assert receipt.duplicate
    assert [entry.record.message_id for entry in house.entries()] == [receipt.message_id]


async def test_a_live_subscription_that_was_never_confirmed_still_sees_what_is_published_after_it(
    cutter: Cutter, broker: MessageBrokerAdapter, house: House
) -> None:
    cutter.answers.clear()
    stream = broker.subscribe(TELEMETRY)
    publishing = asyncio.ensure_future(broker.publish(TOPIC, 1))
    await until(lambda: len(house.entries()) == 1, "the gateway has it")
    cutter.cut()
    cutter.answers.set()
    await asyncio.wait_for(publishing, 60)
    again = asyncio.ensure_future(broker.publish(TOPIC, 2))
    assert [message.json()["value"] for message in await take(stream, 1)] in ([1], [2])
    await asyncio.wait_for(again, 60)


async def test_deliveries_are_acknowledged_on_a_later_connection(
    cutter: Cutter, broker: MessageBrokerAdapter, house: House
) -> None:
    stream = await broker.subscribe(TELEMETRY, group="billing").opened()
    await broker.publish(TOPIC, 1)
    (delivery,) = await take(stream, 1)
    cutter.refusing = True
    cutter.cut()
    acknowledging = asyncio.ensure_future(delivery.ack())
    await asyncio.sleep(0)
    cutter.refusing = False
    await asyncio.wait_for(acknowledging, 60)
    house.clock.advance(2_000)
    await broker.publish(TOPIC, 2)
    (following,) = await take(stream, 1)
    assert (following.message.json(), following.attempt) == ({"value": 2}, 1)


async def test_what_was_handed_out_but_not_taken_comes_again(
    cutter: Cutter, broker: MessageBrokerAdapter, house: House
) -> None:
    stream = await broker.subscribe(TELEMETRY, group="billing").opened()
    await broker.publish(TOPIC, 1)
    await until(lambda: len(stream._buffer) == 1, "it was handed out")
    cutter.cut()
    await until(lambda: len(stream._buffer) == 0, "the connection is lost")
    house.clock.advance(1_001)
    (delivery,) = await take(stream, 1)
    assert (delivery.message.json(), delivery.attempt) == ({"value": 1}, 2)


async def test_a_restarted_gateway_is_found_again(house: House) -> None:
    gateway = WebSocketGateway(house.use_cases)
    # Of the ports that the system hands out, one that knocks in vain may be given the very port on which it knocks.
    host, port = await gateway.start("127.0.0.1", free_port())
    async with MessageBrokerAdapter(WebSocketWire(f"ws://{host}:{port}", house.token())) as broker:
        stream = await broker.subscribe(TELEMETRY).opened()
        await broker.publish(TOPIC, 1)
        await gateway.drain(60)
        await gateway.close()
        waiting = asyncio.ensure_future(broker.publish(TOPIC, 2))
        following = WebSocketGateway(house.use_cases)
        await following.start(host, port)
        await asyncio.wait_for(waiting, 60)
        assert [message.json()["value"] for message in await take(stream, 2)] == [1, 2]
        await following.close()


async def test_a_revoked_token_ends_it_for_good(cutter: Cutter, broker: MessageBrokerAdapter, house: House) -> None:
    stream = await broker.subscribe(TELEMETRY).opened()
    await house.identity.tokens.revoke_subject(house.identity.operator, "user:ada")
    with pytest.raises(Unauthenticated):
        await take(stream, 1)
    with pytest.raises(Unauthenticated):
        await broker.publish(TOPIC, 1)
    with pytest.raises(Unauthenticated):
        await broker.subscribe(TELEMETRY).opened()
    assert cutter.connections == 1


async def test_a_token_that_is_no_longer_believed_ends_the_reconnecting(
    cutter: Cutter, broker: MessageBrokerAdapter, house: House
) -> None:
    stream = await broker.subscribe(TELEMETRY).opened()
    house.clock.advance(3_601_000)
    cutter.cut()
    with pytest.raises(Unauthenticated):
        await take(stream, 1)
    assert cutter.connections == 2


async def test_a_renewed_token_is_used_at_once_and_for_the_next_connection(
    cutter: Cutter, broker: MessageBrokerAdapter, house: House
) -> None:
    stream = await broker.subscribe(TELEMETRY).opened()
    house.clock.advance(3_599_000)
    await broker.renew(house.token())
    house.clock.advance(2_000)
    await broker.publish(TOPIC, 1)
    cutter.cut()
    await broker.publish(TOPIC, 2)
    assert [message.json()["value"] for message in await take(stream, 2)] == [1, 2]


async def test_a_token_renewed_while_the_connection_is_away(
    cutter: Cutter, broker: MessageBrokerAdapter, house: House
) -> None:
    await broker.publish(TOPIC, 1)
    cutter.refusing = True
    cutter.cut()
    waiting = asyncio.ensure_future(broker.publish(TOPIC, 2))
    house.clock.advance(3_599_000)
    await broker.renew(house.token())
    house.clock.advance(2_000)
    cutter.refusing = False
    assert (await asyncio.wait_for(waiting, 60)).duplicate is False


async def test_another_subject_is_refused_and_ends_it(
    cutter: Cutter, broker: MessageBrokerAdapter, house: House
) -> None:
    with pytest.raises(Forbidden, match="same subject"):
        await broker.renew(house.token("user:bob"))
    with pytest.raises((Forbidden, Unauthenticated)):
        await asyncio.wait_for(broker.publish(TOPIC, 1), 60)
    assert cutter.connections == 1


@pytest.mark.parametrize("token", ["", "no.token.atall"])
async def test_a_bad_token_is_told_at_the_start(door: Door, token: str) -> None:
    with pytest.raises(Unauthenticated):
        async with MessageBrokerAdapter(WebSocketWire(door.url, token)):
            raise AssertionError("it was let in")


async def test_a_full_gateway_is_told_at_the_start(house: House) -> None:
    async with open_door(house, WebSocketLimits(connections=1)) as door:
        await door.connect()
        with pytest.raises(TooManyConnections):
            async with MessageBrokerAdapter(WebSocketWire(door.url, house.token())):
                raise AssertionError("it was let in")


async def test_nobody_listens() -> None:
    with pytest.raises(Unavailable, match="is it running"):
        async with MessageBrokerAdapter(WebSocketWire("ws://127.0.0.1:1", "x")):
            raise AssertionError("somebody listens")


@pytest.mark.parametrize("url", ["http://127.0.0.1", "ws://", "127.0.0.1:80", "ws:"])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(RequestInvalid, match="write ws://"):
        WebSocketWire(url)


async def test_big_integers_stay_exact(broker: MessageBrokerAdapter) -> None:
    stream = broker.subscribe(TELEMETRY)
    await broker.publish(TOPIC, {"value": 2**60 + 1})
    (message,) = await take(stream, 1)
    assert message.json() == {"value": 2**60 + 1}


async def test_pauses_grow_and_are_random(monkeypatch: pytest.MonkeyPatch) -> None:
    class Connected(Exception):
        pass

    pauses: list[float] = []
    answers: list[Exception] = [Connected(), *[Unavailable("away")] * 9]

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def connect(_: object) -> None:
        raise answers.pop()

    monkeypatch.setattr(WebSocketWire, "_connect", connect)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(Connected):
        await WebSocketWire("ws://127.0.0.1:1")._reconnect(0.1)
    bounds = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5, 5]
    assert len(set(pauses)) == len(pauses) == 10
    assert all(bound / 2 <= pause <= bound for pause, bound in zip(pauses, bounds, strict=True))
