"""Shadows, commands and notifications over the Python API, alike on both wires, and across lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import pytest

from iotsphere.adapters.broker.broker import MessageBrokerAdapter
from iotsphere.adapters.broker.session_wire import SessionWire
from iotsphere.containers.state import State
from iotsphere.drivers.websocket_wire import WebSocketWire
from iotsphere.entities.errors import (
    Conflict,
    Forbidden,
    MessageRefused,
    NotFound,
    RequestInvalid,
    ShuttingDown,
    VersionConflict,
)
from iotsphere.entities.principal import Principal, parse_grant
from iotsphere.use_cases.access.rate_limit import Rate
from iotsphere.use_cases.users import Fact
from tests.client.cutter import open_cutter
from tests.client.house import ALL, EVERYTHING, House, open_door, open_house
from tests.support.waiting import until
from tests.use_cases.stage import DOMAIN

ID = "0190a1b2-0000-7000-8000-000000000001"
BIG = 2**63 - 1
REQUESTS = f"{DOMAIN}/devices/pump-7/commands/request"
Open = Callable[..., AbstractAsyncContextManager[MessageBrokerAdapter]]


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house(partitions=1) as opened:
        yield opened


@pytest.fixture
async def state(house: House) -> State:
    opened = await house.open_state()
    await house.identity.devices.register(DOMAIN, "pump-7")
    await opened.notifications.keep([Fact(DOMAIN, "ada", "n1", "alarms", 1, {"title": "dry"})])
    return opened


@pytest.fixture(params=["in-process", "websocket"])
async def connect(request: pytest.FixtureRequest, house: House, state: State) -> AsyncIterator[Open]:
    """How to get a broker. ``grants``: of the user Ada, who has all rights by default."""
    assert house.use_cases.state is state.client
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


async def test_desired_state_is_changed_read_as_it_was_and_deleted(broker: MessageBrokerAdapter, house: House) -> None:
    first = await broker.desire("pump-7", {"big": BIG, "float": 0.1, "text": "é", "none": {"x": [None, 1]}})
    assert (first["version"], first["deltaSequence"], first["changed"]) == (1, 1, True)
    house.clock.advance(60_000)
    await broker.desire("pump-7", {"big": None}, version=1)
    shadow = await broker.shadow("pump-7")
    assert shadow["desired"] == {"float": 0.1, "text": "é", "none": {"x": [None, 1]}}
    assert (shadow["version"], shadow["author"]) == (2, "ada")
    await broker.desire("pump-7", {"band": 5}, name="network")
    assert (await broker.shadow("pump-7", "network"))["desired"] == {"band": 5}
    assert (await broker.delete_shadow("pump-7", version=2))["version"] == 3
    with pytest.raises(NotFound):
        await broker.shadow("pump-7")
    assert (await broker.shadow("pump-7", "network"))["version"] == 1


async def test_a_lost_race_is_raised_with_what_is_there(broker: MessageBrokerAdapter) -> None:
    await broker.desire("pump-7", {"n": BIG})
    for losing in (broker.desire("pump-7", {"n": 1}, version=9), broker.delete_shadow("pump-7", version=9)):
        with pytest.raises(VersionConflict) as lost:
            await losing
        assert lost.value.facts == {"version": 1, "state": {"reported": {}, "desired": {"n": BIG}}}


async def test_wishes_expire_as_a_whole_or_one_by_one(broker: MessageBrokerAdapter) -> None:
    whole, single = "2026-01-01T01:00:00.000Z", "2026-01-01T02:00:00.000Z"
    await broker.desire("pump-7", {"a": 1}, expires=whole)
    await broker.desire("pump-7", {"b": 1, "c": 1}, expires={"/b": single})
    wishes = (await broker.shadow("pump-7"))["wishes"]
    assert {pointer: wish.get("expiresAt") for pointer, wish in wishes.items()} == {
        "/a": whole,
        "/b": single,
        "/c": None,
    }


async def test_a_command_is_followed_to_its_end_or_taken_back(broker: MessageBrokerAdapter, state: State) -> None:
    waiting = asyncio.ensure_future(broker.command("pump-7", {"n": BIG}, wait=60, timeout=7, message_id=ID))
    await until(lambda: state.commands.waiting == 1, "it waits")
    shadow = await broker.desire("pump-7", {"a": 1})  # which does not wait behind it
    assert shadow["version"] == 1
    await state.commands.learn(DOMAIN, ID, "fail", {"reason": "stuck", "result": {"at": BIG}})
    command = await waiting
    assert (command["state"], command["final"], command["reason"], command["result"]) == (
        "failed", True, "stuck", {"at": BIG},
    )  # fmt: skip
    assert (command["payload"], command["timeoutSeconds"], command["repeated"]) == ({"n": BIG}, 7.0, False)
    with pytest.raises(Conflict):
        await broker.cancel(ID)
    other = await broker.command("pump-7", {"n": 2})
    assert (await broker.cancel(other["commandId"]))["state"] == "cancelled"


async def test_a_key_and_an_id_stand_for_one_command(connect: Open, house: House) -> None:
    ids = set()
    for _ in range(2):
        async with connect() as broker:
            ids.add((await broker.command("pump-7", {"n": 1}, idempotency_key="k"))["commandId"])
            ids.add((await broker.command("pump-7", {"n": 2}, message_id=ID))["commandId"])
            with pytest.raises(Conflict):
                await broker.command("pump-7", {"n": 3}, idempotency_key="k")
    assert len(ids) == 2
    assert len(house.entries(lambda topic: topic == REQUESTS)) == 2


async def test_a_notification_is_marked_as_read(broker: MessageBrokerAdapter) -> None:
    assert (await broker.read("n1"))["read"] is True
    with pytest.raises(NotFound):
        await broker.read("n1", user="bob")


async def test_refusals_are_raised(connect: Open, broker: MessageBrokerAdapter, house: House) -> None:
    with pytest.raises(NotFound):
        await broker.command("nobody", {})
    with pytest.raises(RequestInvalid, match="is no device id"):
        await broker.shadow("a b")
    with pytest.raises(MessageRefused) as refused:
        await broker.desire("pump-7", {"$a": 1})
    assert refused.value.code == "key_not_allowed"
    with pytest.raises(RequestInvalid, match="plain finite values"):
        await broker.desire("pump-7", {"a": float("nan")})
    with pytest.raises(RequestInvalid, match="plain finite values"):
        await broker.command("pump-7", {"a": object()})
    async with connect(f"subscribe:{EVERYTHING}") as narrow:
        with pytest.raises(Forbidden):
            await narrow.command("pump-7", {})
        with pytest.raises(Forbidden):
            await narrow.desire("pump-7", {"a": 1})
    assert house.entries(lambda topic: topic == REQUESTS) == []


async def test_a_published_request_is_answered_with_the_decision(broker: MessageBrokerAdapter) -> None:
    topic = f"{DOMAIN}/devices/pump-7/shadow/desired"
    receipt = await broker.publish(topic, {"desired": {"a": 1}}, message_id=ID)
    assert receipt.decided is not None
    assert (receipt.message_id, receipt.position, receipt.decided["version"]) == (ID, "", 1)
    with pytest.raises(VersionConflict) as lost:
        await broker.publish(topic, {"desired": {"a": 2}, "version": 7})
    assert lost.value.facts["version"] == 1


async def test_a_gateway_that_asks_to_slow_down_is_obeyed() -> None:
    async with open_house(partitions=1, rate=Rate(messages=50, burst=0.1)) as house:
        await house.open_state()
        await house.identity.devices.register(DOMAIN, "pump-7")
        broker = MessageBrokerAdapter(SessionWire(house.use_cases, house.principal))
        async with broker, asyncio.timeout(60):
            answers = [await broker.desire("pump-7", {"n": n}) for n in range(20)]
        assert [answer["version"] for answer in answers] == list(range(1, 21))
        assert house.use_cases.rates.refused > 0


async def test_what_waits_when_the_broker_is_closed_is_told(connect: Open, state: State) -> None:
    async with connect() as broker:
        waiting = asyncio.ensure_future(broker.command("pump-7", {}, wait=60))
        await until(lambda: state.commands.waiting == 1, "it waits")
    with pytest.raises(ShuttingDown):
        await waiting
    await until(lambda: state.commands.waiting == 0, "the gateway has forgotten who waited")


async def test_requests_are_repeated_after_a_lost_connection_and_count_once(house: House, state: State) -> None:
    async with open_door(house) as door, open_cutter((door.host, door.port)) as cutter:
        async with MessageBrokerAdapter(WebSocketWire(cutter.url, house.token())) as broker, asyncio.timeout(60):
            for round_ in range(1, 4):
                cutter.answers.clear()
                asked = asyncio.gather(
                    broker.desire("pump-7", {"round": round_}),
                    broker.command("pump-7", {"round": round_}),
                    broker.read("n1"),
                )
                await until(lambda n=round_: _carried_out(house) == n, "the command was carried out")  # type: ignore[misc]
                cutter.cut()
                cutter.answers.set()
                changed, command, notification = await asked
                assert (changed["version"], changed["changed"]) == (round_, True)
                assert (command["state"], command["repeated"]) == ("queued", True)
                assert notification["read"] is True
        assert cutter.connections == 4
    assert (await state.shadows.of_device(DOMAIN, "pump-7"))[0].version == 3
    commands = await state.commands.of_device(DOMAIN, "pump-7")
    assert sorted(command.payload["round"] for command in commands) == [1, 2, 3]


async def test_who_waits_goes_on_waiting_on_the_next_connection(house: House, state: State) -> None:
    async with (
        open_door(house) as door,
        open_cutter((door.host, door.port)) as cutter,
        MessageBrokerAdapter(WebSocketWire(cutter.url, house.token())) as broker,
        asyncio.timeout(60),
    ):
        waiting = asyncio.ensure_future(broker.command("pump-7", {"n": 1}, wait=60, message_id=ID))
        await until(lambda: state.commands.waiting == 1, "it waits")
        cutter.cut()
        await until(lambda: cutter.connections == 2 and state.commands.waiting == 1, "it waits again")
        await state.commands.learn(DOMAIN, ID, "succeed", {"result": 1})
        command = await waiting
        assert (command["state"], command["repeated"]) == ("succeeded", True)
    assert _carried_out(house) == 1


def _carried_out(house: House) -> int:
    return len(house.entries(lambda topic: topic == REQUESTS))
