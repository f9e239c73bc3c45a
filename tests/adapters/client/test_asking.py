"""What clients ask of shadows, commands and notifications: each answered once, by itself, refused with a reason, bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from iotsphere.adapters.client import asking as client_asking
from iotsphere.adapters.client.session import ClientSession
from iotsphere.containers.state import State
from iotsphere.entities.errors import DatabaseUnavailable
from iotsphere.use_cases.access.rate_limit import Rate
from iotsphere.use_cases.command.order import Order
from iotsphere.use_cases.users import Fact
from tests.adapters.client.test_session import Client
from tests.client.house import EVERYTHING, House, open_house
from tests.support.waiting import until
from tests.use_cases.stage import DOMAIN

DEVICE = f"{DOMAIN}/devices/pump-7"
ID = "0190a1b2-0000-7000-8000-000000000001"
BIG = 2**53 + 1


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house(partitions=1) as opened:
        yield opened


@pytest.fixture
async def state(house: House) -> State:
    """The house's state, with one device and one notification of Ada's."""
    opened = await house.open_state()
    await house.identity.devices.register(DOMAIN, "pump-7")
    await opened.notifications.keep([Fact(DOMAIN, "ada", "n1", "alarms", 1, {"title": "dry"})])
    return opened


@pytest.fixture
def client(house: House, state: State) -> Client:
    assert house.use_cases.state is state.client
    return Client(house, f"publish:{EVERYTHING}", f"subscribe:{EVERYTHING}", f"command:{EVERYTHING}")


async def test_a_shadow_is_changed_read_at_each_time_and_deleted(client: Client, house: House) -> None:
    none = await client.ask("shadow", device="pump-7")
    assert (none["type"], none["code"]) == ("error", "not_found")
    first = await client.ask("shadow", device="pump-7", desired={"interval": 5}, messageId=ID)
    assert {name: first[name] for name in ("type", "messageId", "version", "deltaSequence", "changed")} == {
        "type": "ok",
        "messageId": ID,
        "version": 1,
        "deltaSequence": 1,
        "changed": True,
    }
    again = await client.ask("shadow", device="pump-7", desired={"interval": 5}, messageId=ID)
    assert {**again, "ref": first["ref"]} == first
    house.clock.advance(1_000)
    await client.ask("shadow", device="pump-7", desired={"interval": 6}, version=1)
    shadow = (await client.ask("shadow", device="pump-7"))["shadow"]
    assert (shadow["version"], shadow["desired"], shadow["delta"]) == (2, {"interval": 6}, {"interval": 6})
    assert (shadow["author"], shadow["name"], shadow["device"]) == ("ada", "", "pump-7")
    gone = await client.ask("shadow", device="pump-7", delete=True, version=2)
    assert (gone["version"], gone["changed"]) == (3, True)
    assert (await client.ask("shadow", device="pump-7"))["code"] == "not_found"


async def test_a_lost_race_is_answered_with_what_stands_there(client: Client) -> None:
    await client.ask("shadow", device="pump-7", name="network", desired={"band": BIG})
    lost = await client.ask("shadow", device="pump-7", name="network", desired={"band": 1}, version=7)
    assert (lost["code"], lost["retry"]) == ("version_conflict", False)
    assert lost["current"] == {"version": 1, "state": {"reported": {}, "desired": {"band": str(BIG)}}}


async def test_a_command_is_accepted_known_again_and_taken_back(client: Client, state: State) -> None:
    sent = await client.ask("command", device="pump-7", payload={"n": 1}, messageId=ID, timeout=30)
    command = sent["command"]
    assert (command["commandId"], command["state"], command["repeated"]) == (ID, "queued", False)
    assert (command["caller"], command["timeoutSeconds"]) == (f"{DOMAIN}/user/ada", 30.0)
    again = await client.ask("command", device="pump-7", payload={"n": 1}, messageId=ID, timeout=30)
    assert (again["command"]["commandId"], again["command"]["repeated"]) == (ID, True)
    assert (await client.ask("cancel", command=ID))["command"]["state"] == "cancelled"
    assert (await client.ask("cancel", command=ID))["command"]["state"] == "cancelled"
    late = await client.ask("command", device="pump-7", payload={"n": 2})
    await state.commands.learn(DOMAIN, late["command"]["commandId"], "sent")
    refused = await client.ask("cancel", command=late["command"]["commandId"])
    assert (refused["code"], "is with the device already" in refused["message"]) == ("conflict", True)


async def test_a_key_stands_for_one_command_of_its_caller(client: Client, house: House) -> None:
    first = await client.ask("command", device="pump-7", payload={"n": 1}, idempotencyKey="k")
    again = await client.ask("command", device="pump-7", payload={"n": 1}, idempotencyKey="k")
    assert (again["command"]["commandId"], again["command"]["repeated"]) == (first["command"]["commandId"], True)
    other = await client.ask("command", device="pump-7", payload={"n": 2}, idempotencyKey="k")
    assert other["code"] == "conflict"
    somebody = Client(house)
    theirs = await somebody.ask("command", device="pump-7", payload={"n": 2}, idempotencyKey="k")
    assert theirs["command"]["commandId"] != first["command"]["commandId"]


async def test_a_notification_is_read_by_its_user(client: Client, house: House) -> None:
    read = await client.ask("read", notification="n1")
    assert (read["notification"]["id"], read["notification"]["read"]) == ("n1", True)
    assert (await client.ask("read", notification="n1"))["notification"] == read["notification"]
    assert (await client.ask("read", notification="n2"))["code"] == "not_found"
    assert (await client.ask("read", notification="n1", user="bob"))["code"] == "not_found"
    narrow = Client(house, f"subscribe:{DOMAIN}/users/ada/#")
    assert (await narrow.ask("read", notification="n1", user="bob"))["code"] == "forbidden"
    assert (await narrow.ask("read", notification="n1"))["type"] == "ok"


@pytest.mark.parametrize(
    ("kind", "members", "code", "says"),
    [
        ("command", {"device": "nobody", "payload": {}}, "not_found", ""),
        ("command", {"device": "a b", "payload": {}}, "request_invalid", "is no device id"),
        ("command", {"device": "pump-7", "payload": {"$x": 1}}, "key_not_allowed", ""),
        ("command", {"device": "pump-7", "payload": [1]}, "request_invalid", "payload"),
        ("command", {"device": "pump-7", "payload": {}, "messageId": "7"}, "request_invalid", "is a UUID"),
        ("command", {"device": "pump-7", "payload": {}, "messageId": ID, "idempotencyKey": "k"}, "request_invalid", "both"),
        ("command", {"device": "pump-7", "payload": {}, "expiresAt": "soon"}, "request_invalid", "is no time"),
        ("command", {"device": "pump-7", "payload": {}, "expiresAt": "2020-01-01T00:00:00Z"}, "request_invalid", "future"),
        ("command", {"device": "pump-7", "payload": {}, "timeout": 86_401}, "request_invalid", "timeout"),
        ("command", {"device": "pump-7", "payload": {}, "wait": 301}, "request_invalid", "wait"),
        ("cancel", {"command": ID}, "not_found", ""),
        ("shadow", {"device": "nobody", "desired": {"a": 1}}, "not_found", ""),
        ("shadow", {"device": "a/b"}, "request_invalid", "is no device id"),
        ("shadow", {"device": "pump-7", "name": "a/b"}, "request_invalid", "is no name for a shadow"),
        ("shadow", {"device": "pump-7", "asOf": "noon"}, "request_invalid", "is no time"),
        ("shadow", {"device": "pump-7", "asOf": "2026-01-01T00:00:00Z", "version": 1}, "request_invalid", "not for both"),
        ("shadow", {"device": "pump-7", "version": 4}, "not_found", ""),
        ("shadow", {"device": "pump-7", "desired": {"a": 1}, "delete": True}, "request_invalid", "not both at once"),
        ("shadow", {"device": "pump-7", "desired": {"a": 1}, "messageId": "7"}, "schema_violation", ""),
        ("shadow", {"device": "pump-7", "desired": {"a": 1}, "expires": {"/b": "2027-01-01T00:00:00Z"}}, "schema_violation", "/b"),
        ("shadow", {"device": "pump-7", "desired": {"a": 1}, "expiresAt": "soon"}, "timestamp_invalid", ""),
        ("shadow", {"device": "pump-7", "delete": True, "expiresAt": "2027-01-01T00:00:00Z"}, "schema_violation", ""),
        ("shadow", {"device": "pump-7", "desired": {"a": "x" * 65_536}}, "payload_too_large", ""),
        ("read", {"notification": "n1", "user": "a b"}, "request_invalid", "is no user id"),
    ],
)  # fmt: skip
async def test_each_refusal_has_its_code_and_changes_nothing(
    client: Client, state: State, *, kind: str, members: dict[str, Any], code: str, says: str
) -> None:
    refused = await client.ask(kind, **members)
    assert (refused["type"], refused["code"]) == ("error", code), refused
    assert says in refused["message"]
    assert await state.commands.of_device(DOMAIN, "pump-7") == []
    assert await state.shadows.of_device(DOMAIN, "pump-7") == []


@pytest.mark.parametrize(
    ("grant", "kind", "members", "code"),
    [
        (f"publish:{EVERYTHING}", "command", {"device": "pump-7", "payload": {}}, "forbidden"),
        (f"command:{DOMAIN}/devices/pump-8/#", "command", {"device": "pump-7", "payload": {}}, "forbidden"),
        (f"publish:{EVERYTHING}", "shadow", {"device": "pump-7"}, "forbidden"),
        (f"subscribe:{EVERYTHING}", "shadow", {"device": "pump-7", "desired": {"a": 1}}, "forbidden"),
        (f"subscribe:{EVERYTHING}", "shadow", {"device": "pump-7", "delete": True}, "forbidden"),
        (f"subscribe:{EVERYTHING}", "cancel", {"command": ID}, "not_found"),
        (f"command:{DOMAIN}/devices/pump-8/#", "cancel", {"command": ID}, "not_found"),
        (f"publish:{EVERYTHING}", "read", {"notification": "n1"}, "forbidden"),
    ],
)
async def test_each_request_needs_its_grant(
    client: Client, house: House, *, grant: str, kind: str, members: dict[str, Any], code: str
) -> None:
    await client.ask("command", device="pump-7", payload={}, messageId=ID)
    assert (await Client(house, grant).ask(kind, **members))["code"] == code


async def test_a_gateway_without_a_database_says_so(house: House) -> None:
    alone = Client(house)
    for kind, members in (
        ("shadow", {"device": "pump-7"}),
        ("cancel", {"command": ID}),
        ("read", {"notification": "n"}),
    ):
        refused = await alone.ask(kind, **members)
        assert (refused["code"], "connect to a running gateway" in refused["message"]) == ("request_invalid", True)


async def test_a_database_that_is_away_is_told_with_retry(
    client: Client, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise DatabaseUnavailable("the database does not answer; try again")

    monkeypatch.setattr(state.shadows, "get", away)
    refused = await client.ask("shadow", device="pump-7")
    assert (refused["code"], refused["retry"]) == ("database_unavailable", True)


async def test_who_waits_holds_nobody_up_and_gets_the_end(client: Client, state: State) -> None:
    waiting = orjson.dumps(
        {"type": "command", "ref": "w", "device": "pump-7", "payload": {"n": 1}, "messageId": ID, "wait": 60}
    )
    await client.session.receive(waiting)
    await until(lambda: state.commands.waiting == 1, "it waits")
    assert (await client.ask("ping"))["type"] == "ok"
    assert (await client.ask("shadow", device="pump-7", desired={"a": 1}))["version"] == 1
    assert client.answers("w") == []
    await state.commands.learn(DOMAIN, ID, "succeed", {"result": {"big": BIG, "n": 5}})
    await until(lambda: client.answers("w"), "it is answered")
    (answer,) = client.answers("w")
    assert (answer["command"]["state"], answer["command"]["result"]) == ("succeeded", {"big": str(BIG), "n": 5})
    pending = await client.ask("command", device="pump-7", payload={"n": 2}, wait=0.05)
    assert (pending["command"]["state"], pending["command"]["final"]) == ("queued", False)


async def test_closing_ends_what_waits_and_keeps_what_was_begun(client: Client, state: State) -> None:
    request = {"type": "command", "ref": "w", "device": "pump-7", "payload": {}, "messageId": ID, "wait": 60}
    await client.session.receive(orjson.dumps(request))
    await until(lambda: state.commands.waiting == 1, "it waits")
    client.session.close()
    await until(lambda: state.commands.waiting == 0, "nobody waits")
    assert client.outbox.frames == []
    assert (await state.commands.get(DOMAIN, ID)).state == "queued"


async def test_too_many_at_once_are_told_to_wait(client: Client, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_asking, "MAX_ASKING", 2)
    ids = [ID.replace("01", f"{n:02}") for n in (10, 11)]
    for ref, each in enumerate(ids):
        request = {
            "type": "command",
            "ref": f"w{ref}",
            "device": "pump-7",
            "payload": {},
            "messageId": each,
            "wait": 60,
        }
        await client.session.receive(orjson.dumps(request))
    await until(lambda: state.commands.waiting == 2, "both wait")
    refused = await client.ask("shadow", device="pump-7", desired={"a": 1})
    assert (refused["code"], refused["retry"], refused["retryAfter"]) == ("rate_limited", True, 1_000)
    assert client.outbox.closed is None
    await state.commands.learn(DOMAIN, ids[0], "reject", {"reason": "no"})
    await until(lambda: client.answers("w0"), "one is over")
    await asyncio.sleep(0)  # its place is free in the loop's next turn, before anybody could ask from outside
    assert (await client.ask("shadow", device="pump-7", desired={"a": 1}))["version"] == 1


async def test_answers_wait_for_who_reads_them_up_to_a_bound(client: Client, state: State) -> None:
    await client.ask("shadow", device="pump-7", desired={"text": "x" * 60_000})
    client.outbox.full = True
    for ref in range(200):
        await client.session.receive(orjson.dumps({"type": "shadow", "ref": f"r{ref}", "device": "pump-7"}))
    result = {"result": "x" * 200_000}
    ids = [ID.replace("01", f"{number:02}") for number in range(10, 24)]
    for each in ids:
        await state.commands.send(
            Order(id=each, domain=DOMAIN, device="pump-7", caller=f"{DOMAIN}/user/ada", payload={})
        )
        await state.commands.learn(DOMAIN, each, "succeed", result)
        ask = {"type": "command", "ref": each, "device": "pump-7", "payload": {}, "messageId": each}
        await client.session.receive(orjson.dumps(ask))
    await until(lambda: len(client.outbox.of("error")) == 4, "what is beyond the bound is refused")
    for refused in client.outbox.of("error"):
        assert (refused["code"], refused["retry"], refused["retryAfter"]) == ("rate_limited", True, 1_000)
        assert refused["message"].startswith("the answer has 200")
        assert refused["message"].endswith("read them, then ask again")
    assert (await client.ask("shadow", device="pump-7", desired={"a": 1}))["version"] == 2  # what is small is told
    assert len(client.outbox.of("ok")) == 2
    client.outbox.full = False
    client.session.has_room()
    await until(lambda: len(client.outbox.of("ok")) == 2 + 200 + 10, "all others are answered")


async def test_asking_counts_against_the_rate() -> None:
    async with open_house(partitions=1, rate=Rate(messages=0.01, burst=200)) as house:
        await house.open_state()
        await house.identity.devices.register(DOMAIN, "pump-7")
        client = Client(house)
        answers = [await client.ask("shadow", device="pump-7", desired={"n": n}) for n in range(3)]
        assert [answer["type"] for answer in answers] == ["ok", "ok", "error"]
        assert (answers[2]["code"], answers[2]["retryAfter"] > 0) == ("rate_limited", True)


@pytest.mark.parametrize("exact", [False, True])
async def test_integers_beyond_what_browsers_hold_come_exactly_or_as_texts(
    client: Client, house: House, exact: bool
) -> None:
    client.session = ClientSession(house.use_cases, client.outbox, client.session.principal, exact)
    shown: object = BIG if exact else str(BIG)
    sent = await client.ask("command", device="pump-7", payload={"big": BIG, "float": 1e300, "text": f'"{BIG}'})
    assert sent["command"]["payload"] == {"big": shown, "float": 1e300, "text": f'"{BIG}'}
    await client.ask("shadow", device="pump-7", desired={"list": [-BIG, 2**53]})
    shadow = (await client.ask("shadow", device="pump-7"))["shadow"]
    assert shadow["desired"] == {"list": [-BIG if exact else str(-BIG), 2**53]}
    topic = f"{DOMAIN}/users/ada/preferences"
    decided = await client.ask("publish", topic=topic, payload={"preferences": {"big": BIG}})
    assert (decided["preferences"], decided["version"]) == ({"big": shown}, 1)
    lost = await client.ask("publish", topic=topic, payload={"preferences": {"big": 1}, "version": 7})
    assert lost["current"]["state"] == {"preferences": {"big": shown}, "version": 1}


@pytest.mark.usefixtures("state")
async def test_a_hundred_clients_that_repeat_one_request_change_once(house: House) -> None:
    clients = [Client(house) for _ in range(100)]
    ask = [one.ask("shadow", device="pump-7", desired={"n": 1}, messageId=ID) for one in clients]
    answers = await asyncio.gather(*ask)
    assert {(answer["version"], answer["changed"]) for answer in answers} == {(1, True)}
    commands = [one.ask("command", device="pump-7", payload={"n": 1}, messageId=ID) for one in clients]
    told = [answer["command"] for answer in await asyncio.gather(*commands)]
    assert sorted(command["repeated"] for command in told) == [False] + [True] * 99
    assert {command["commandId"] for command in told} == {ID}
    assert len(house.entries(lambda topic: topic == f"{DEVICE}/commands/request")) == 1
