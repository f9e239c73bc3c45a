"""mosquitto_pub and mosquitto_sub, which most people try first, against a gateway process."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest

from tests.support.gateway import Credential, Gateway
from tests.support.servers import binary, environment

pytestmark = pytest.mark.asyncio(loop_scope="module")

VERSIONS = ("mqttv311", "mqttv5")
QOS = (0, 1, 2)
_names = itertools.count(1)


async def run(*words: str, feed: bytes = b"") -> tuple[int, str]:
    """Run a command to its end: its exit code, and what it wrote."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(binary(words[0]), *words[1:]), stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT, env=environment()
    )
    out, _ = await asyncio.wait_for(process.communicate(feed), 90)
    assert process.returncode is not None
    return process.returncode, out.decode()


async def new_device(gateway: Gateway) -> tuple[Credential, str]:
    (who,) = await gateway.add_devices([f"m{next(_names)}"])
    return who, f"iotsphere/devices/{who.device_id}/telemetry"


def login(gateway: Gateway, who: Credential, version: str) -> tuple[str, ...]:
    host, port = gateway.mqtt
    return ("-h", host, "-p", str(port), "-u", who.username, "-P", who.password, "-V", version)


@pytest.mark.parametrize("qos", QOS)
@pytest.mark.parametrize("version", VERSIONS)
async def test_lines_are_published_and_a_kept_session_gets_them(gateway: Gateway, version: str, qos: int) -> None:
    who, topic = await new_device(gateway)
    words = login(gateway, who, version)
    kept = (*words, "-i", "keeper", "-c", "-q", "2", "-t", topic)
    kept += ("-x", "600") if version == "mqttv5" else ()
    assert await run("mosquitto_sub", *kept, "-E") == (0, "")
    lines = b"".join(b"%d\n" % number for number in range(20))
    assert await run("mosquitto_pub", *words, "-t", topic, "-q", str(qos), "-l", feed=lines) == (0, "")
    code, out = await run("mosquitto_sub", *kept, "-C", "20", "-W", "60")
    assert code == 0
    assert [json.loads(line)["payload"]["value"] for line in out.splitlines()] == list(range(20))


@pytest.mark.parametrize("version", VERSIONS)
async def test_retained_value_is_shown_at_once(gateway: Gateway, version: str) -> None:
    who, topic = await new_device(gateway)
    words = login(gateway, who, version)
    assert await run("mosquitto_pub", *words, "-t", topic, "-q", "1", "-r", "-m", "4") == (0, "")
    code, out = await run("mosquitto_sub", *words, "-t", topic, "-q", "1", "-C", "1", "-W", "60", "-F", "%r %p")
    flag, _, body = out.partition(" ")
    assert (code, json.loads(body)["payload"]) == (0, {"value": 4})
    assert flag in ("0", "1")  # 0: the subscription was quicker than the gateway's view of last values


async def test_refusals_are_shown(gateway: Gateway) -> None:
    who, topic = await new_device(gateway)
    words = login(gateway, who, "mqttv5")
    _, out = await run("mosquitto_pub", *words, "-t", "iotsphere/devices/other/telemetry", "-q", "1", "-m", "1")
    assert "Not authorized" in out
    code, out = await run("mosquitto_sub", *words, "-t", "iotsphere/#", "-q", "1", "-C", "1", "-W", "60")
    assert "All subscription requests were denied" in out
    host, port = gateway.mqtt
    code, out = await run("mosquitto_pub", "-h", host, "-p", str(port), "-t", topic, "-m", "1")
    assert code != 0
    assert "not authori" in out.lower()
