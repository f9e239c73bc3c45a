"""The command line as its users meet it: real processes, a real MQTT client, and restarts."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

import iotsphere

from .support.command_line import iotsphere_command, iotsphere_process
from .support.gateway import SOURCES, Gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    async with Gateway(tmp_path_factory.mktemp("cli") / "data") as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def own_gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    """One to be stopped."""
    async with Gateway(tmp_path / "data") as running:
        yield running


async def test_version() -> None:
    assert await iotsphere_process("--version") == f"iotsphere {iotsphere.__version__}\n"


async def mosquitto_pub(gateway: Gateway, credential: dict[str, str], metric: str, payload: str) -> None:
    program = shutil.which("mosquitto_pub")
    assert program, "make test installs mosquitto-clients"
    host, port = gateway.mqtt
    process = await asyncio.create_subprocess_exec(
        program, "-h", host, "-p", str(port), "-u", credential["username"], "-P", credential["password"],
        "-t", f"iotsphere/devices/{credential['device_id']}/telemetry/{metric}", "-m", payload, "-q", "1", "-V", "5",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, out.decode()


def envelopes(lines: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.splitlines()]


async def test_from_a_device_to_the_terminal_and_across_a_restart(own_gateway: Gateway) -> None:
    data = str(own_gateway.data)
    added = json.loads(await iotsphere_process("device", "add", "sensor-1", "--data", data, "--json"))
    assert set(added) == {"device_id", "username", "password"}
    assert added["device_id"] == "sensor-1"
    await mosquitto_pub(own_gateway, added, "temperature", "21.5")
    await mosquitto_pub(own_gateway, added, "temperature", "21,5")
    told = await iotsphere_process(
        "tail", "iotsphere/devices/+/telemetry/#", "--from", "earliest", "--count", "1", "--data", data, "--json"
    )
    [message] = envelopes(told)
    assert message["payload"] == {"value": 21.5}
    assert message["metadata"]["topic"] == "iotsphere/devices/sensor-1/telemetry/temperature"
    assert message["metadata"]["source"] == "sensor-1"

    [letter] = envelopes(await iotsphere_command("dead-letters", "list", "--data", data, "--json"))
    assert letter["reason"] == "payload_not_json"
    lines = (await iotsphere_command("dead-letters", "list", "--data", data)).splitlines()
    received = f"{letter['received_at'][:19]}Z"
    assert [line.split()[:5] for line in lines] == [
        ["received", "id", "reason", "source", "topic"],
        [received, *(letter[name] for name in ("id", "reason", "source", "topic"))],
    ]
    assert lines[1].endswith(letter["detail"])
    shown = json.loads(await iotsphere_command("dead-letters", "show", letter["id"], "--data", data))
    assert shown["topic"] == "iotsphere/devices/sensor-1/telemetry/temperature"
    await iotsphere_command("dead-letters", "discard", letter["id"], "--data", data)

    trace = json.loads(await iotsphere_command("trace", message["metadata"]["messageId"], "--data", data))
    assert trace["place"]["topic"] == message["metadata"]["topic"]

    async with asyncio.timeout(100):  # the last values are saved every two seconds, and only then are they applied
        while True:
            ledger = json.loads(await iotsphere_command("ledger", "--data", data, "--json"))
            assert ledger["readers"]
            assert all(row["imbalance"] == 0 for row in ledger["readers"])
            if not any(row["pending"] for row in ledger["readers"]):
                break
    heads, *rows = (await iotsphere_process("ledger", "--data", data)).splitlines()
    assert heads.split()[3:] == [
        "accepted", "applied", "superseded", "expired", "dead-lettered", "lost", "pending", "imbalance",
    ]  # fmt: skip
    assert all(row.split()[2:] == ["telemetry", "1", "1", *"000000"] for row in rows if "last-values / telem" in row)

    assert await own_gateway.terminate() == 0
    await own_gateway.start()
    again = await iotsphere_command(
        "tail", "iotsphere/devices/+/telemetry/#", "--from", "latest", "--count", "1", "--data", data, "--json"
    )
    assert envelopes(again) == [message]
    await mosquitto_pub(own_gateway, added, "temperature", "22")
    newer = await iotsphere_command(
        "tail", "iotsphere/devices/sensor-1/telemetry/#", "--from", "earliest", "--count", "2", "--data", data, "--json"
    )
    assert [each["payload"]["value"] for each in envelopes(newer)] == [21.5, 22]


async def test_publish_and_token(gateway: Gateway) -> None:
    data = str(gateway.data)
    topic = "iotsphere/system/status"
    receipt = json.loads(await iotsphere_command("publish", topic, '{"state":"fine"}', "--data", data, "--json"))
    issued = json.loads(
        await iotsphere_command(
            "token", "user:ann", "--grant", "subscribe:iotsphere/system/#", "--data", data, "--json"
        )
    )
    told = await iotsphere_command(
        "tail",
        topic,
        "--from",
        "earliest",
        "--count",
        "1",
        "--url",
        gateway.websocket,
        "--token",
        issued["token"],
        "--json",
    )
    [message] = envelopes(told)
    assert message["metadata"]["messageId"] == receipt["message_id"]
    assert message["payload"] == {"state": "fine"}
    refusal = await iotsphere_command(
        "tail", "iotsphere/devices/#", "--count", "1", "--url", gateway.websocket, "--token", issued["token"], expect=2
    )
    assert refusal.startswith("forbidden: ")
    refusal = await iotsphere_command(
        "publish", topic, "1", "--url", gateway.websocket, "--token", issued["token"], expect=2
    )
    assert refusal.startswith("forbidden: ")


async def test_devices_are_listed_and_removed(gateway: Gateway) -> None:
    data = str(gateway.data)
    for device in ("b", "a"):
        await iotsphere_command("device", "add", device, "--data", data)
    assert await iotsphere_command("device", "list", "--data", data) == "a\nb\n"
    assert (await iotsphere_command("device", "add", "A", "--data", data, expect=2)).startswith("conflict: ")
    told = await iotsphere_command("device", "add", "a", "--data", data, expect=2)
    assert "iotsphere device rotate a" in told
    told = await iotsphere_command("device", "rotate", "nobody", "--data", data, expect=2)
    assert told.startswith("not_found: ")
    assert told.endswith(f"  iotsphere device list --data {data}\n")
    await iotsphere_command("device", "remove", "a", "--data", data)
    assert await iotsphere_command("device", "list", "--data", data) == "b\n"
    assert (await iotsphere_command("device", "remove", "a", "--data", data, expect=2)).startswith("not_found: ")


async def test_who_may_connect_is_told_without_loading_what_only_a_gateway_needs(tmp_path: Path) -> None:
    program = "import atexit, sys; from iotsphere.cli import main; atexit.register(lambda: print(*sys.modules)); main()"
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program, "device", "add", "a", "--data", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(SOURCES)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    told = done.stdout.splitlines()
    assert told[0] == "device   a"
    assert {"fastapi", "starlette", "uvicorn", "pyspark", "pyarrow"}.isdisjoint(told[-1].split())


async def test_commands_of_no_device_are_asked_for_with_one() -> None:
    told = await iotsphere_command("command", "list", expect=2)
    assert told == (
        "request_invalid: commands are listed for one device: name it, as in `iotsphere command list valve-1`\n"
        "To see which devices there are:\n  iotsphere device list\n"
    )


async def test_secrets_are_private_and_a_public_file_is_refused(own_gateway: Gateway) -> None:
    secrets = own_gateway.data / "secrets.json"
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
    await own_gateway.terminate()
    secrets.chmod(0o644)
    told = await iotsphere_command("device", "list", "--data", str(own_gateway.data), expect=2)
    assert "chmod 600" in told
    secrets.chmod(0o600)


async def test_without_a_gateway_it_says_how_to_start_one(tmp_path: Path) -> None:
    told = await iotsphere_process("tail", "iotsphere/#", "--data", str(tmp_path), expect=1)
    assert "iotsphere up" in told


async def test_a_second_gateway_on_the_same_data_is_refused(gateway: Gateway) -> None:
    told = await iotsphere_process(
        "up", "--data", str(gateway.data), "--mqtt", "127.0.0.1:0", "--websocket", "127.0.0.1:0", "--http", "127.0.0.1:0",
        expect=1,
    )  # fmt: skip
    assert "is written by process" in told


async def test_ports_in_use_are_named_all_at_once(gateway: Gateway, tmp_path: Path) -> None:
    taken = ":".join(map(str, gateway.mqtt)), httpx.URL(gateway.http).netloc.decode()
    words = ("--mqtt", taken[0], "--websocket", "127.0.0.1:0", "--http", taken[1])
    told = await iotsphere_process("up", "--data", str(tmp_path / "other"), *words, expect=2)
    why = "address already in use"
    assert told.lower() == (
        f"request_invalid: cannot listen on {taken[0]} for mqtt ({why}), {taken[1]} for http ({why}); "
        "choose another with --mqtt host:port --http host:port\n"
    )


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("device list", 2), ("device remove x", 2), ("device rotate x", 2), ("console", 2), ("ledger", 1),
        ("dead-letters list", 1), ("shadow get x", 1), ("command list x", 1), ("tail iotsphere/#", 1),
        ("publish iotsphere/system/status 1", 1), ("spark report", 1), ("spark --lag", 1),
    ],
)  # fmt: skip
async def test_a_command_in_the_wrong_folder_makes_nothing_there(line: str, code: int, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    told = await iotsphere_command(*line.split(), "--data", str(folder), expect=code)
    assert str(folder) in told
    assert "--data" in told
    assert not folder.exists()


@pytest.mark.parametrize("words", [("run", "cook"), ("up", "--log", "mongodb://x"), ("up", "--mqtt", "nowhere")])
async def test_bad_words_are_refused_with_a_remedy(words: tuple[str, ...], tmp_path: Path) -> None:
    told = await iotsphere_process(*words, "--data", str(tmp_path), expect=2)
    assert told.startswith("request_invalid: ")


async def test_a_link_to_the_console_signs_in_once(gateway: Gateway) -> None:
    link = (await iotsphere_command("console", "--user", "ann", "--data", str(gateway.data))).strip()
    address, _, code = link.partition("#/sign-in/")
    assert address == f"{gateway.http}/"
    async with httpx.AsyncClient(base_url=gateway.http, trust_env=False, timeout=60) as anybody:
        made = await anybody.post("/api/v1/session", headers={"authorization": f"Code {code}"})
        assert (made.status_code, made.json()["subject"]) == (201, "user:ann")
        assert (await anybody.post("/api/v1/session", headers={"authorization": f"Code {code}"})).status_code == 401
