"""The WebSocket door: the client protocol over real sockets."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.extensions.permessage_deflate import PerMessageDeflate
from websockets.typing import Subprotocol

from iotsphere.adapters.client import delivery as client_delivery
from iotsphere.adapters.envelope import is_browser_safe
from iotsphere.gateways.websocket import WebSocketLimits
from iotsphere.gateways.websocket import gateway as gateway_module
from tests.client.house import EVERYTHING, TOPIC, Door, House, Talker, open_door, values
from tests.support.waiting import until
from tests.use_cases.stage import DOMAIN

OTHER = f"{DOMAIN}/devices/d2/telemetry/temperature"


async def test_subscribe_publish_and_leave(door: Door) -> None:
    client = await door.connect()
    assert client.connection.subprotocol == "iotsphere.v1.json"
    answer = await client.subscribe()
    assert answer == {
        "type": "ok",
        "ref": 1,
        "subscription": "s1",
        "cursor": answer["cursor"],
        "missed": [],
    }
    published = await client.publish({"value": 1})
    frame = await client.push("messages")
    assert frame.keys() == {"type", "subscription", "cursor", "messages"}
    (message,) = frame["messages"]
    assert message["metadata"]["messageId"] == published["messageId"]
    assert message["payload"] == {"value": 1}
    left = await client.ask("unsubscribe", subscription="s1")
    assert left == {"type": "ok", "ref": 3, "cursor": frame["cursor"]}
    await client.publish({"value": 2})
    assert (await client.ask("ping"))["time"] == "2026-01-01T00:00:00.000Z"
    assert client.pushes == []


async def test_a_client_that_comes_back_gets_exactly_the_rest(door: Door) -> None:
    client = await door.connect()
    start = await client.subscribe()
    for value in range(5):
        await client.publish({"value": value})
    frames: list[dict[str, Any]] = []
    while not frames or frames[-1]["messages"][-1]["payload"]["value"] != 4:
        frames.append(await client.push("messages"))
    cursors = [start["cursor"], *(frame["cursor"] for frame in frames)]
    sizes = [0, *(len(frame["messages"]) for frame in frames)]
    await client.connection.close()
    late = await door.connect()
    for number, cursor in enumerate(cursors):
        await late.subscribe(**{"from": cursor})
        expected = list(range(sum(sizes[: number + 1]), 5))
        assert values(await late.messages(len(expected))) == expected
    assert late.pushes == []


async def test_the_first_message_may_be_the_token(door: Door, house: House) -> None:
    client = await door.connect(None)
    answer = await client.ask("auth", token=house.token(lifetime=60))
    assert answer == {"type": "ok", "ref": 1, "expiresAt": "2026-01-01T00:01:00.000Z", "expiresIn": 60_000}
    assert (await client.publish({"value": 1}))["duplicate"] is False


async def test_requests_before_the_token_end_the_connection(door: Door, house: House) -> None:
    client = await door.connect(None)
    answer = await client.ask("publish", topic=TOPIC, payload=1)
    assert (answer["code"], answer["retry"]) == ("unauthenticated", False)
    assert await client.closed() == (4401, "authenticate")
    assert house.entries() == []


async def test_silence_instead_of_a_token_ends_the_connection(house: House) -> None:
    async with open_door(house, WebSocketLimits(authentication=0.05)) as door:
        silent, known = await door.connect(None), await door.connect()
        assert await silent.closed() == (4401, "authenticate")
        assert (await known.ask("ping"))["type"] == "ok"


async def test_a_token_is_renewed_in_place(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "CHECK_EVERY_S", 0.02)
    async with open_door(house) as quick:
        client = await quick.connect(house.token(lifetime=60))
        await client.subscribe()
        house.clock.advance(59_000)
        answer = await client.ask("auth", token=house.token(lifetime=60))
        assert answer["expiresAt"] == "2026-01-01T00:01:59.000Z"
        house.clock.advance(30_000)
        await client.publish({"value": 1})
        assert values(await client.messages(1)) == [1]
        house.clock.advance(30_000)
        assert (await client.closed())[0] == 4401


async def test_a_renewed_token_with_less_rights_ends_what_they_no_longer_cover(door: Door, house: House) -> None:
    client = await door.connect()
    await client.subscribe()
    await client.subscribe(TOPIC)
    await client.subscribe(TOPIC, group="billing")
    narrow = house.token(grants=[f"subscribe:{TOPIC}"])
    await client.ask("auth", token=narrow)
    assert await client.push("ended") == {
        "type": "ended",
        "subscription": "s1",
        "code": "forbidden",
        "message": "no longer granted",
    }
    await house.say(house.edge.admit(house.edge.route(house.principal, TOPIC), b"1", house.clock.now()))
    assert (await client.push("messages"))["subscription"] == "s2"
    assert (await client.push("deliveries"))["subscription"] == "s3"
    assert (await client.ask("publish", topic=TOPIC, payload=1))["code"] == "forbidden"


async def test_another_subject_is_no_renewal(door: Door, house: House) -> None:
    client = await door.connect()
    answer = await client.ask("auth", token=house.token("user:bob"))
    assert answer["code"] == "forbidden"
    assert (await client.closed())[0] == 4403


@pytest.mark.parametrize("how", ["expires", "token revoked", "subject revoked"])
async def test_nothing_is_delivered_after_a_credential_ended(
    house: House, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(gateway_module, "CHECK_EVERY_S", 0.02)
    identity = house.identity
    async with open_door(house) as door:
        issued = identity.tokens.issue(identity.operator, "user:ada", [f"subscribe:{EVERYTHING}"], lifetime=60)
        client, other = await door.connect(issued.token), await door.connect(house.token("user:bob"))
        await client.subscribe()
        await client.subscribe(group="billing")
        await other.subscribe()
        match how:
            case "expires":
                house.clock.advance(60_001)
            case "token revoked":
                await identity.tokens.revoke(identity.operator, issued.token_id)
            case _:
                await identity.tokens.revoke_subject(identity.operator, "user:ada")
        assert (await client.closed())[0] == 4401
        await other.publish({"value": 1})
        assert values(await other.messages(1)) == [1]
        with pytest.raises(ConnectionClosed):
            await client.connection.recv()
        assert door.gateway.counts["closed_credential"] == 1


async def test_expiry_is_noticed_within_five_seconds() -> None:
    assert gateway_module.CHECK_EVERY_S <= 4


async def test_big_integers_are_texts_unless_asked_for(door: Door, house: House) -> None:
    browser = await door.connect()
    service = await door.connect(query="?trace=1&numbers=exact")
    await browser.subscribe()
    await service.subscribe()
    await house.say(house.edge.admit(house.edge.route(house.principal, TOPIC), b"9007199254740993", 0))
    assert values(await browser.messages(1)) == ["9007199254740993"]
    assert values(await service.messages(1)) == [9007199254740993]


async def test_compression_is_offered_when_set_and_changes_nothing_else(house: House) -> None:
    async with open_door(house, WebSocketLimits(compression=True)) as door:
        small, plain = await door.connect(compression="deflate"), await door.connect()
        assert [type(each) for each in small.connection.protocol.extensions] == [PerMessageDeflate]
        assert plain.connection.protocol.extensions == []
        await small.subscribe()
        await plain.subscribe()
        for value in range(50):
            await small.publish({"value": value, "text": "x" * 500})
        assert values(await small.messages(50)) == values(await plain.messages(50)) == list(range(50))


async def test_compression_is_not_offered_by_default(door: Door) -> None:
    client = await door.connect(compression="deflate")
    assert client.connection.protocol.extensions == []


async def test_a_message_is_encoded_once_for_fifty_clients(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[bytes] = []

    def counting(body: bytes) -> bool:
        encoded.append(body)
        return is_browser_safe(body)

    monkeypatch.setattr(client_delivery, "is_browser_safe", counting)
    clients = [await door.connect() for _ in range(50)]
    for client in clients:
        await client.subscribe()
    await clients[0].publish({"value": 1})
    for client in clients:
        assert values(await client.messages(1)) == [1]
    assert len(encoded) == 1


async def test_draining_hands_out_cursors_and_refuses_newcomers(house: House) -> None:
    async with open_door(house) as door:
        clients = [await door.connect() for _ in range(3)]
        for client in clients:
            await client.subscribe(TOPIC)
        await clients[0].publish({"value": 1})
        await clients[0].messages(1)
        await door.gateway.drain(5)
        closing = await clients[0].push("closing")
        assert (closing["code"], closing["retry"]) == ("shutting_down", True)
        for client in clients:
            assert (await client.closed())[0] == 1012
        with pytest.raises((InvalidStatus, OSError)):
            await door.connect()
    await house.say(house.edge.admit(house.edge.route(house.principal, TOPIC), b"2", house.clock.now()))
    async with open_door(house) as following:
        again = await following.connect()
        await again.subscribe(TOPIC, **{"from": closing["cursors"]["s1"]})
        assert values(await again.messages(1)) == [2]


async def test_quiet_subscriptions_are_told_where_they_stand(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "CHECK_EVERY_S", 0.02)
    monkeypatch.setattr("iotsphere.adapters.client.listening.CURSOR_NOTICE_S", 0.05)
    async with open_door(house) as door:
        client = await door.connect()
        first = (await client.subscribe(OTHER))["cursor"]
        await client.publish({"value": 1})
        frame = await client.push("messages")
        while frame["cursor"] == first:
            frame = await client.push("messages")
        assert frame["messages"] == []
        again = await door.connect()
        await again.subscribe(OTHER, **{"from": frame["cursor"]})
        await again.publish({"value": 2}, OTHER)
        assert values(await again.messages(1)) == [2]


async def test_work_is_shared_and_acknowledged(door: Door) -> None:
    one, two = await door.connect(), await door.connect()
    await one.subscribe(TOPIC, group="billing", credit=2)
    await two.subscribe(TOPIC, group="billing", credit=2)
    for value in range(4):
        await one.publish({"value": value})
    got: dict[str, int] = {}
    for client in (one, two):
        taken: list[dict[str, Any]] = []
        while len(taken) < 2:
            taken += (await client.push("deliveries"))["deliveries"]
        got |= {item["delivery"]: item["message"]["payload"]["value"] for item in taken}
        answer = await client.ask("ack", subscription="s1", deliveries=[item["delivery"] for item in taken])
        assert answer["acknowledged"] == 2
    assert sorted(got.values()) == [0, 1, 2, 3]
    again = await two.ask("ack", subscription="s1", deliveries=list(got))
    assert again["acknowledged"] == 0


async def test_a_client_without_the_subprotocol_is_served_as_well(door: Door, house: House) -> None:
    headers = {"Authorization": f"Bearer {house.token()}"}
    offers = [None, [Subprotocol("soap"), Subprotocol("iotsphere.v1.json")]]
    chosen = []
    for offer in offers:
        async with connect(door.url, subprotocols=offer, additional_headers=headers, proxy=None) as socket:
            chosen.append(socket.subprotocol)
            assert (await Talker(socket).ask("ping"))["type"] == "ok"
    assert chosen == [None, "iotsphere.v1.json"]
    with pytest.raises(InvalidStatus) as refused:
        await connect(door.url, subprotocols=[Subprotocol("soap")], additional_headers=headers, proxy=None)
    assert refused.value.response.status_code == 400
    assert b"offer iotsphere.v1.json, or none" in (refused.value.response.body or b"")


async def test_binary_frames_are_requests_too(door: Door) -> None:
    client = await door.connect()
    await client.connection.send(orjson.dumps({"type": "ping", "ref": "a"}))
    assert (await client.answer("a"))["type"] == "ok"


async def test_origins_are_checked_when_they_are_set(house: House) -> None:
    async with open_door(house, WebSocketLimits(origins=("https://console.example",))) as door:
        assert await door.connect(origin="https://console.example")
        assert await door.connect()
        with pytest.raises(InvalidStatus) as refused:
            await door.connect(origin="https://evil.example")
        assert refused.value.response.status_code == 403


async def test_a_client_that_leaves_is_forgotten(door: Door, house: House) -> None:
    client = await door.connect()
    await client.subscribe()
    await client.subscribe(group="billing")
    assert door.gateway.connections == 1
    client.connection.transport.abort()
    await until(lambda: door.gateway.connections == 0, "the door forgot it")
    assert house.feed._groups == {}
    assert house.feed._listeners == set()
