"""Shadows and commands from the terminal, against a running gateway: what is printed, and the exit codes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from .cases.twins import twin
from .support.command_line import iotsphere_command, iotsphere_process
from .support.gateway import Gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    async with Gateway(tmp_path_factory.mktemp("cli") / "data") as running:
        yield running


async def facts(gateway: Gateway, *words: str) -> Any:
    """What a command prints with --json: one object, or a list of one a line."""
    lines = (await iotsphere_command(*words, "--json", "--data", str(gateway.data))).splitlines()
    return json.loads(lines[0]) if len(lines) == 1 else [json.loads(line) for line in lines]


async def told(gateway: Gateway, *words: str, expect: int = 0) -> str:
    return await iotsphere_command(*words, "--data", str(gateway.data), expect=expect)


async def test_a_shadow_is_changed_read_and_deleted(gateway: Gateway) -> None:
    (who,) = await gateway.add_devices(["cli-pump"])
    first = await facts(gateway, "shadow", "set", "cli-pump", '{"interval": 5, "name": "\u00fcber"}')
    assert (first["version"], first["changed"]) == (1, True)
    assert await told(gateway, "shadow", "set", "cli-pump", '{"interval": 5}') == "as desired already, version 1\n"
    lost = await told(gateway, "shadow", "set", "cli-pump", '{"interval": 6}', "--version", "7", expect=2)
    assert lost.startswith("version_conflict: ")
    assert (
        await told(gateway, "shadow", "set", "cli-pump", '{"interval": 6}', "--version", "1") == "changed, version 2\n"
    )
    async with twin(gateway, who, honours=True) as device:
        await device.until("shadow/delta", 1)
        shadow = await facts(gateway, "shadow", "get", "cli-pump")
        while shadow["delta"]:
            shadow = await facts(gateway, "shadow", "get", "cli-pump")
    assert (shadow["reported"], shadow["desired"]) == ({"interval": 6, "name": "\u00fcber"},) * 2
    lines = (await told(gateway, "shadow", "get", "cli-pump")).splitlines()
    assert lines[0].startswith(f"cli-pump  version {shadow['version']}  {shadow['updatedAt']}  cli-pump")
    assert lines[1:4] == [
        'reported  {"interval": 6, "name": "\u00fcber"}',
        'desired   {"interval": 6, "name": "\u00fcber"}',
        "delta     {}",
    ]
    assert [line.split(" since ")[0] for line in lines[4:]] == [
        "wish      /interval applied",
        "wish      /name applied",
    ]
    old = await facts(gateway, "shadow", "get", "cli-pump", "--version", "1")
    assert old["desired"] == {"interval": 5, "name": "\u00fcber"}
    versions = await facts(gateway, "shadow", "history", "cli-pump")
    assert [each["version"] for each in versions] == list(range(1, shadow["version"] + 1))
    later = await told(gateway, "shadow", "history", "cli-pump", "--after", "1", "--limit", "1")
    assert later.startswith("cli-pump  version 2  ")
    gone = await told(gateway, "shadow", "delete", "cli-pump", "--version", str(shadow["version"]))
    assert gone == f"deleted, version {shadow['version'] + 1}\n"
    assert (await told(gateway, "shadow", "get", "cli-pump", expect=2)).startswith("not_found: ")


async def test_a_named_shadow_is_another_one(gateway: Gateway) -> None:
    await gateway.add_devices(["cli-named"])
    await told(gateway, "shadow", "set", "cli-named", '{"a": 1}', "--name", "network")
    assert (await facts(gateway, "shadow", "get", "cli-named", "--name", "network"))["desired"] == {"a": 1}
    assert (await told(gateway, "shadow", "get", "cli-named", expect=2)).startswith("not_found: ")


async def test_a_command_is_sent_followed_and_taken_back(gateway: Gateway) -> None:
    (who,) = await gateway.add_devices(["cli-valve"])
    sent = await facts(gateway, "command", "send", "cli-valve", '{"action": "open"}', "--key", "order-1")
    assert (sent["state"], sent["final"], sent["repeated"]) == ("queued", False, False)
    again = await facts(gateway, "command", "send", "cli-valve", '{"action": "open"}', "--key", "order-1")
    assert (again["commandId"], again["repeated"]) == (sent["commandId"], True)
    other = await told(gateway, "command", "send", "cli-valve", "{}", "--key", "order-1", expect=2)
    assert other.startswith("conflict: ")
    shown = (await told(gateway, "command", "show", sent["commandId"])).splitlines()
    assert shown[0] == f'{sent["commandId"]}  queued      cli-valve  {{"action": "open"}}'
    assert [line.split()[1] for line in shown[1:]] == ["accepted", "queued"]
    assert await told(gateway, "command", "show", sent["commandId"], "--wait", "0.2", expect=4) == ""
    back = await told(gateway, "command", "cancel", sent["commandId"])
    assert back == f'{sent["commandId"]}  cancelled   cli-valve  {{"action": "open"}}\n'
    assert (await told(gateway, "command", "cancel", "nothing", expect=2)).startswith("not_found: ")
    async with twin(gateway, who, honours=True):
        done = await facts(gateway, "command", "send", "cli-valve", '{"action": "close"}', "--wait", "30")
        assert (done["state"], done["result"]) == ("succeeded", {"action": "close"})
    listed = await facts(gateway, "command", "list", "cli-valve")
    assert [each["state"] for each in listed] == ["cancelled", "succeeded"]


async def test_the_exit_code_tells_how_a_command_ended(gateway: Gateway) -> None:
    (who,) = await gateway.add_devices(["cli-broken"])
    async with twin(gateway, who) as device:
        sent = await facts(gateway, "command", "send", "cli-broken", '{"n": 1}')
        await device.until("commands/request", 1)
        await device.answer(sent["commandId"], {"status": "failed", "reason": "stuck\u001b[31m"})
        waiting = ("command", "show", sent["commandId"], "--wait", "30", "--data", str(gateway.data))
        assert await iotsphere_process(*waiting, expect=3) == ""
        shown = (await told(gateway, "command", "show", sent["commandId"])).splitlines()[0]
        assert shown.endswith('{"n": 1}  {"reason": "stuck\\u001b[31m"}')


@pytest.mark.parametrize("words", [("shadow", "set"), ("command", "send")])
@pytest.mark.parametrize(
    ("text", "code"),
    [("[1]", "request_invalid"), ("{", "payload_not_json"), ('{"a":1,"a":2}', "json_duplicate_key")],
)
async def test_what_is_no_object_is_refused_before_it_is_sent(words: tuple[str, str], text: str, code: str) -> None:
    assert (await iotsphere_command(*words, "any", text, expect=2)).startswith(f"{code}: ")


async def test_a_device_that_is_not_registered_is_not_found(gateway: Gateway) -> None:
    for words in (("shadow", "set", "nobody", "{}"), ("command", "send", "nobody", "{}")):
        assert (await told(gateway, *words, expect=2)).startswith("not_found: ")
    assert (await told(gateway, "shadow", "get", "no/body", expect=2)).startswith(("not_found: ", "request_invalid: "))
