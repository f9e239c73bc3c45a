"""docs/reference/asyncapi.yaml says what the gateway does: it is AsyncAPI 3, and real frames fit it."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from jsonschema import Draft7Validator, Draft202012Validator
from pydantic import BaseModel

from iotsphere.adapters.client import opening, protocol
from iotsphere.adapters.client import session as client_session
from iotsphere.entities.command import STATES
from iotsphere.entities.errors import RequestInvalid
from iotsphere.gateways.websocket import WebSocketLimits
from iotsphere.gateways.websocket import gateway as websocket
from iotsphere.use_cases.users import Fact
from tests.client.house import TOPIC, Talker, open_door, open_house
from tests.client.raw import TEXT
from tests.gateways.websocket.test_slow_reader import OUTBOX, publish, stalled_client
from tests.support.waiting import until
from tests.use_cases.stage import DOMAIN

ROOT = Path(__file__).parents[3]
DOCUMENT: dict[str, Any] = yaml.safe_load((ROOT / "docs/reference/asyncapi.yaml").read_text(encoding="utf-8"))
MESSAGES: dict[str, Any] = DOCUMENT["components"]["messages"]
REQUESTS: dict[str, type[BaseModel]] = {
    "subscribe": protocol.Subscribe,
    "unsubscribe": protocol.Unsubscribe,
    "play": protocol.Play,
    "publish": protocol.Publish,
    "command": protocol.Command,
    "cancel": protocol.Cancel,
    "shadow": protocol.Shadow,
    "read": protocol.Read,
    "ack": protocol.Acknowledge,
    "auth": protocol.Auth,
    "ping": protocol.Ping,
}
ANSWERS = {
    "subscribe": "subscribed",
    "unsubscribe": "unsubscribed",
    "play": "played",
    "publish": "published",
    "command": "commanded",
    "cancel": "cancelled",
    "shadow": "shadowed",
    "read": "marked",
    "ack": "acknowledged",
    "auth": "authenticated",
    "ping": "pong",
}
PUSHES = ("messages", "deliveries", "gap", "lagging", "clock", "ended", "closing")

# AsyncAPI 3.0.0 as far as this document uses it, for machines without npm; the whole schema is used where npm is.
REFERENCE = {"type": "object", "required": ["$ref"], "properties": {"$ref": {"pattern": "^#/"}}, "maxProperties": 1}
REFERENCES = {"type": "array", "minItems": 1, "items": REFERENCE}
ASYNCAPI = {
    "type": "object",
    "required": ["asyncapi", "info", "servers", "channels", "operations", "components"],
    "additionalProperties": False,
    "properties": {
        "asyncapi": {"const": "3.0.0"},
        "defaultContentType": {"const": "application/json"},
        "info": {"type": "object", "required": ["title", "version", "description", "license"]},
        "servers": {
            "additionalProperties": {"type": "object", "required": ["host", "protocol", "security"]},
        },
        "channels": {
            "additionalProperties": {
                "type": "object",
                "required": ["address", "messages"],
                "properties": {"messages": {"additionalProperties": REFERENCE}, "servers": REFERENCES},
            }
        },
        "operations": {
            "additionalProperties": {
                "type": "object",
                "required": ["action", "channel", "messages"],
                "additionalProperties": False,
                "properties": {
                    "action": {"enum": ["send", "receive"]},
                    "channel": REFERENCE,
                    "summary": {"type": "string"},
                    "messages": REFERENCES,
                    "reply": {
                        "type": "object",
                        "required": ["channel", "messages"],
                        "properties": {"channel": REFERENCE, "messages": REFERENCES},
                    },
                },
            }
        },
        "components": {
            "type": "object",
            "required": ["securitySchemes", "messages", "schemas"],
            "properties": {
                "messages": {
                    "additionalProperties": {
                        "type": "object",
                        "required": ["title", "payload", "examples"],
                        "properties": {
                            "examples": {
                                "type": "array",
                                "minItems": 1,
                                "items": {"type": "object", "required": ["payload"]},
                            }
                        },
                    }
                }
            },
        },
    },
}


@cache
def validator(name: str) -> Draft7Validator:
    return Draft7Validator({"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]})


def check(name: str, frame: object) -> None:
    """Hold a frame against the schema of this name."""
    faults = [f"{list(fault.path)}: {fault.message}" for fault in validator(name).iter_errors(frame)]
    assert not faults, (name, faults, frame)


# The document itself


def test_document_is_built_as_asyncapi_3_wants_it() -> None:
    assert [fault.message for fault in Draft202012Validator(ASYNCAPI).iter_errors(DOCUMENT)] == []


def test_document_fits_the_official_schema(tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not here; the schema of AsyncAPI 3 comes from its package @asyncapi/specs")
    command = [npm, "pack", "--silent", "--pack-destination", str(tmp_path), "@asyncapi/specs@6.11.1"]
    packed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
    if packed.returncode:  # a registry that is away says nothing about the document, which the test above checks, too
        pytest.skip("npm could not get @asyncapi/specs; connect this machine to its registry")
    (archive,) = tmp_path.glob("*.tgz")
    with tarfile.open(archive) as package:
        member = package.extractfile("package/schemas/3.0.0-without-$id.json")
        assert member is not None
        official = Draft7Validator(json.load(member))
    assert [fault.message for fault in official.iter_errors(DOCUMENT)] == []
    assert not official.is_valid({**DOCUMENT, "channels": {"x": {"adress": "/"}}})


def references(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield value
            else:
                yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_every_reference_leads_somewhere_and_everything_is_used() -> None:
    used = set(references(DOCUMENT))
    for reference in used:
        node: Any = DOCUMENT
        for part in reference.removeprefix("#/").split("/"):
            assert part in node, reference
            node = node[part]
    for kind in ("messages", "schemas"):
        for name in DOCUMENT["components"][kind]:
            assert f"#/components/{kind}/{name}" in used, f"{kind}/{name} is used nowhere"


def test_every_request_answer_and_push_is_described() -> None:
    operations = DOCUMENT["operations"]
    assert set(operations) == {*REQUESTS, "push"}
    assert set(MESSAGES) == {*REQUESTS, *ANSWERS.values(), "error", *PUSHES}
    for request, answer in ANSWERS.items():
        reply = [item["$ref"].rpartition("/")[2] for item in operations[request]["reply"]["messages"]]
        assert reply == [answer, "error"]


def test_the_states_of_commands_are_those_of_the_code() -> None:
    described = DOCUMENT["components"]["schemas"]["commandFacts"]["properties"]["state"]["enum"]
    assert described == list(STATES)


def test_close_codes_are_those_of_the_code() -> None:
    codes = DOCUMENT["channels"]["session"]["x-close-codes"]
    own = {
        client_session.CLOSE_NOT_UTF8,
        client_session.CLOSE_UNAUTHENTICATED,
        client_session.CLOSE_FORBIDDEN,
        client_session.CLOSE_TOO_FAST,
        websocket.CLOSE_RESTARTING,
    }
    assert set(codes) == own | {1002, 1009}
    for code in codes:
        assert f"| {code} |" in DOCUMENT["channels"]["session"]["description"]


@pytest.mark.parametrize("name", MESSAGES)
def test_examples_fit_their_schemas(name: str) -> None:
    for example in MESSAGES[name]["examples"]:
        check(MESSAGES[name]["payload"]["$ref"].rpartition("/")[2], example["payload"])


@pytest.mark.parametrize("name", REQUESTS)
def test_request_examples_are_accepted(name: str) -> None:
    for example in MESSAGES[name]["examples"]:
        assert isinstance(protocol.parse_request(orjson.dumps(example["payload"])), REQUESTS[name])


@pytest.mark.parametrize("name", REQUESTS)
def test_members_of_requests_are_those_of_the_code(name: str) -> None:
    schema = DOCUMENT["components"]["schemas"][name]
    model = REQUESTS[name].model_json_schema(by_alias=True)
    assert set(schema["properties"]) == set(model["properties"])
    assert set(schema["required"]) == set(model["required"])
    for member, described in schema["properties"].items():
        coded = model["properties"][member]
        for keyword in ("default", "minimum", "maximum", "enum", "minItems", "maxItems", "pattern"):
            if keyword in described:
                options = [coded, *coded.get("anyOf", ())]
                assert described[keyword] in [option.get(keyword) for option in options], (member, keyword)


@pytest.mark.parametrize(
    "request_",
    [
        {"type": "subscribe", "ref": 1, "filters": []},
        {"type": "subscribe", "ref": 1, "filters": ["a"] * 101},
        {"type": "subscribe", "ref": 1, "filters": ["a"], "policy": "x"},
        {"type": "subscribe", "ref": 1, "filters": ["a"], "credit": 0},
        {"type": "subscribe", "ref": 1, "filters": ["a"], "group": "-"},
        {"type": "subscribe", "ref": 1, "filters": ["a"], "speed": -1},
        {"type": "subscribe", "ref": 1, "filters": ["a"], "speed": 1001},
        {"type": "play", "ref": 1, "subscription": "s1"},
        {"type": "subscribe", "ref": 1.5, "filters": ["a"]},
        {"type": "subscribe", "ref": "x" * 129, "filters": ["a"]},
        {"type": "publish", "ref": 1, "topic": "a"},
        {"type": "publish", "ref": 1, "topic": "a", "payload": 1, "message": {"metadata": {}, "payload": 1}},
        {"type": "publish", "ref": 1, "topic": "a", "message": {"payload": 1}},
        {"type": "command", "ref": 1, "device": "d", "payload": 1},
        {"type": "command", "ref": 1, "device": "d"},
        {"type": "command", "ref": 1, "device": "d", "payload": {}, "wait": 301},
        {"type": "command", "ref": 1, "device": "d", "payload": {}, "timeout": -1},
        {"type": "command", "ref": 1, "device": "d", "payload": {}, "idempotencyKey": ""},
        {"type": "cancel", "ref": 1},
        {"type": "shadow", "ref": 1},
        {"type": "shadow", "ref": 1, "device": "d", "version": -1},
        {"type": "shadow", "ref": 1, "device": "d", "desired": []},
        {"type": "shadow", "ref": 1, "device": "d", "expires": {"/a": 1}},
        {"type": "read", "ref": 1, "notification": None},
        {"type": "ack", "ref": 1, "subscription": "s1", "deliveries": ["x"], "retryIn": -1},
        {"type": "ping", "ref": 1, "more": 1},
        {"type": "auth", "ref": 1},
    ],
)
def test_what_the_document_forbids_is_refused_and_the_other_way_round(request_: dict[str, object]) -> None:
    assert not validator(str(request_["type"])).is_valid(request_)
    with pytest.raises(RequestInvalid):
        protocol.parse_request(orjson.dumps(request_))


# Real frames


class Witness(Talker):
    """A client that holds each frame that it gets against the document."""

    def __init__(self, talker: Talker) -> None:
        super().__init__(talker.connection)
        self.asked: dict[object, str] = {}
        self.seen: set[str] = set()

    async def say(self, kind: str, **members: object) -> int:
        ref = await super().say(kind, **members)
        self.asked[ref] = kind
        return ref

    async def read(self) -> dict[str, Any]:
        frame = await super().read()
        self.witness(frame)
        return frame

    def witness(self, frame: dict[str, Any]) -> None:
        name = ANSWERS[self.asked[frame["ref"]]] if frame["type"] == "ok" else frame["type"]
        check(name, frame)
        self.seen.add(name)


async def test_frames_of_a_real_connection_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "MAX_SUBSCRIPTIONS", 6)
    async with open_house(partitions=1) as house, open_door(house, WebSocketLimits(outbox_bytes=OUTBOX)) as door:
        client = Witness(await door.connect(None))
        await client.ask("auth", token=house.token())
        start = (await client.subscribe(TOPIC))["cursor"]
        await client.subscribe(TOPIC, cursors="message")
        await client.subscribe(TOPIC, group="billing")
        await client.ask("ping")
        for value in range(5):
            await client.publish({"value": value})
        message = (await client.push("messages"))["messages"][0]
        await client.ask("publish", topic=f"{DOMAIN}/system/status", message={"metadata": {}, "payload": 2**60})
        await client.ask("publish", topic=f"{DOMAIN}/nowhere", payload=1)
        await client.ask("publish", topic=TOPIC, message=message)
        delivery = (await client.push("deliveries"))["deliveries"][0]["delivery"]
        await client.ask("ack", subscription="s3", deliveries=[delivery])
        house.log.shelf(house.log.partitions(DOMAIN, "telemetry")[0]).trim(2)
        late = await client.subscribe(TOPIC, **{"from": start})
        assert late["missed"][0]["count"] == 2
        await client.subscribe(f"{DOMAIN}/#", **{"from": "latest"})
        await client.push("messages")
        for bad in ("other/#", "#"):
            assert (await client.ask("subscribe", filters=[bad]))["type"] == "error"
        await client.connection.send(b'{"type":"nonsense","ref":"x"}')
        assert (await client.answer("x"))["code"] == "request_invalid"
        await client.connection.send(b"{")
        assert (await client.answer(None))["code"] == "payload_not_json"
        await client.ask("unsubscribe", subscription="s2")
        await client.ask("auth", token=house.token(grants=[f"subscribe:{DOMAIN}/system/#"]))
        await client.push("ended")
        await door.gateway.drain(5)
        await client.push("closing")
        elsewhere = {"commanded", "cancelled", "shadowed", "marked", "gap", "lagging", "played", "clock"}
        assert client.seen == {*ANSWERS.values(), "error", *PUSHES} - elsewhere


async def test_frames_of_a_rewind_fit() -> None:
    async with open_house(partitions=1) as house, open_door(house) as door:
        client = Witness(await door.connect())
        await client.publish({"value": 1})
        house.clock.advance(60_000)
        await client.subscribe(TOPIC, **{"from": "earliest"}, speed=0)
        assert (await client.push("clock"))["state"] == "paused"
        assert (await client.ask("play", subscription="s1", speed=1000))["type"] == "ok"
        states = [(await client.push("clock"))["state"]]
        while states[-1] != "live":
            states.append((await client.push("clock"))["state"])
        assert states[0] == "playing"
        assert (await client.push("messages"))["messages"][0]["payload"] == {"value": 1}
        assert (await client.ask("play", subscription="s1", speed=2))["code"] == "request_invalid"
        assert client.seen == {"published", "subscribed", "played", "clock", "messages", "error"}


async def test_frames_about_state_fit() -> None:
    async with open_house(partitions=1) as house:
        state = await house.open_state()
        await house.identity.devices.register(DOMAIN, "pump-7")
        await state.notifications.keep([Fact(DOMAIN, "ada", "n1", "alarms", 1, {"title": "dry"})])
        async with open_door(house) as door:
            client = Witness(await door.connect())
            changed = await client.ask("shadow", device="pump-7", desired={"interval": 5})
            assert (changed["version"], changed["changed"]) == (1, True)
            assert (await client.ask("shadow", device="pump-7"))["shadow"]["desired"] == {"interval": 5}
            lost = await client.ask("shadow", device="pump-7", desired={"interval": 6}, version=7)
            assert (lost["code"], lost["current"]["version"]) == ("version_conflict", 1)
            topic = f"{DOMAIN}/devices/pump-7/shadow/desired"
            assert (await client.ask("publish", topic=topic, payload={"desired": {"interval": 7}}))["version"] == 2
            sent = await client.ask("command", device="pump-7", payload={"action": "open"})
            assert sent["command"]["state"] == "queued"
            back = await client.ask("cancel", command=sent["command"]["commandId"])
            assert back["command"]["state"] == "cancelled"
            assert (await client.ask("read", notification="n1"))["notification"]["read"] is True
            asked = await client.ask("publish", topic=f"{DOMAIN}/devices/pump-7/commands/request", payload={"n": 2**60})
            assert (asked["command"]["payload"], asked["repeated"]) == ({"n": str(2**60)}, False)
            await state.commands.learn(DOMAIN, asked["messageId"], "fail", {"reason": "stuck", "progress": 40})
            await state.commands.learn(DOMAIN, asked["messageId"], "succeed", {"result": 1})
            again = await client.ask("cancel", command=asked["messageId"])
            assert (again["type"], again["code"]) == ("error", "conflict")
            waited = await client.ask(
                "command", device="pump-7", payload={"n": 2**60}, messageId=asked["messageId"], wait=5
            )
            assert (waited["command"]["state"], waited["command"]["reason"]) == ("failed", "stuck")
            topic = f"{DOMAIN}/users/ada/preferences"
            assert (await client.ask("publish", topic=topic, payload={"preferences": {"a": 1}}))["version"] == 1
            assert (await client.ask("shadow", device="pump-7", delete=True))["changed"] is True
            assert client.seen == {"commanded", "cancelled", "shadowed", "marked", "published", "error"}


async def test_frames_of_a_client_that_fell_behind_fit() -> None:
    async with open_house(partitions=1) as house, open_door(house, WebSocketLimits(outbox_bytes=OUTBOX)) as door:
        client = await stalled_client(door)
        (stuck,) = door.gateway._clients
        await publish(house, 0, 1_500)
        await until(lambda: stuck.connection.paused, "it is stuck")
        house.log.shelf(house.log.partitions(DOMAIN, "telemetry")[0]).trim(1_490)
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]  # asyncio has no public way
        seen: list[str] = []
        while seen.count("lagging") < 2:
            opcode, frame = await client.read_frame()
            assert opcode == TEXT
            document = orjson.loads(frame)
            check(document["type"], document)
            seen.append(document["type"])
        assert set(seen) == {"messages", "gap", "lagging"}
        assert seen.index("gap") > seen.index("lagging")
