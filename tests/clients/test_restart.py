"""The gateway dies under libraries that connect again by themselves: what they were told is in the log, in order."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import Gateway
from tests.support.waiting import until

from .library import Login
from .mqttjs_library import MqttjsLibrary
from .paho_library import PahoLibrary

COUNT = 120
KILLED_AFTER = (50,)


# Paho at QoS 2 is left out: when its first attempt to connect again fails, it forgets how far each message was, and
# publishes anew, without DUP, what it has let go already; nobody could tell that from new messages.
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(("make", "qos"), [(PahoLibrary, 1), (MqttjsLibrary, 1), (MqttjsLibrary, 2)])
async def test_a_library_goes_on_after_the_gateway_was_killed(
    tmp_path: Path, make: Any, qos: int, version: int
) -> None:
    async with Gateway(tmp_path / "data") as gateway:
        (who,) = await gateway.add_devices(["d1"])
        topic = "iotsphere/devices/d1/telemetry"
        async with make(Login(*gateway.mqtt, who.username, who.password, version, "d1")) as library:
            library.patient = True
            await library.connect(clean=False)
            acknowledged = 0

            async def publish(number: int) -> None:
                nonlocal acknowledged
                await library.publish(topic, b"%d" % number, qos)
                acknowledged += 1

            all_of_them = asyncio.gather(*(publish(number) for number in range(COUNT)))
            for count in KILLED_AFTER:

                def reached(count: int = count) -> bool:
                    return acknowledged >= count

                await until(reached, f"{count} are acknowledged")
                await gateway.restart()
            await all_of_them
        async with gateway.api() as api:
            answer = await api.get("/api/v1/messages", params={"filter": topic, "from": "earliest", "limit": 1_000})
            answer.raise_for_status()
        values = [each["payload"]["value"] for each in answer.json()["messages"]]
    first_of_each = list(dict.fromkeys(values))
    assert first_of_each == list(range(COUNT))
    if qos == 2:
        assert len(values) == COUNT
