"""Simulated weather stations for the demo: real MQTT clients that replay measured temperatures.

The data are hourly temperatures of San Francisco and Seattle in 2010 (NOAA, public domain) as the package
`vega_datasets` ships them; one hour passes each second. One station of each city has a loose wire and now and then
sends a value with a decimal comma, so that there is a dead letter to look at. Desired are its ``interval`` in seconds
and its ``unit``; a command that it knows is ``{"action": "restart"}``.
"""

from __future__ import annotations

import asyncio
import csv
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import resources
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

import aiomqtt
import orjson
import structlog

from ..entities.errors import RequestInvalid

logger = structlog.get_logger("iotsphere.demo")

SETS: Final = {"sf": "sf-temps.csv", "seattle": "seattle-temps.csv"}
STATIONS_PER_CITY: Final = 3
BAD_VALUE_EVERY: Final = 30
RECONNECT_S: Final = 2.0
MIN_INTERVAL_S: Final = 0.1
MAX_INTERVAL_S: Final = 60
# What may be desired of a station, and which values it takes; then in words.
WISHES: Final[dict[str, Callable[[Any], bool]]] = {
    "interval": lambda value: type(value) in (int, float) and MIN_INTERVAL_S <= value <= MAX_INTERVAL_S,
    "unit": lambda value: value in ("Cel", "[degF]"),
}
BOUNDS: Final = f'an interval from {MIN_INTERVAL_S} to {MAX_INTERVAL_S} (seconds), and a unit of "Cel" or "[degF]"'


class Station(NamedTuple):
    """A simulated device with its credentials and its city's readings (time text, degrees Celsius)."""

    device_id: str
    username: str
    password: str
    readings: Sequence[tuple[str, float]]


def station_ids() -> list[str]:
    """The device ids of the demo."""
    return [f"weather-{city}-{number}" for city in SETS for number in range(1, STATIONS_PER_CITY + 1)]


def readings_of(device_id: str) -> list[tuple[str, float]]:
    """The measured temperatures of a station's city. Raises RequestInvalid when the data set is not installed."""
    if find_spec("vega_datasets") is None:
        raise RequestInvalid("the demo replays measured data; install it with: pip install 'iotsphere[demo]'")
    city = device_id.split("-")[1]
    text = resources.files("vega_datasets").joinpath("_data", SETS[city]).read_text()
    rows = csv.DictReader(text.splitlines())
    return [(row["date"], round((float(row["temp"]) - 32) * 5 / 9, 1)) for row in rows]


def _is_cancelled() -> bool:
    """Whether the group of this task has cancelled it: on Python 3.11 the client loses it where it meets an acknowledgement."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Weather:
    """One station's life: it measures, honours what is desired, and answers commands."""

    def __init__(self, station: Station, domain: str) -> None:
        self._station = station
        self._topic = f"{domain}/devices/{station.device_id}"
        self._dice = random.Random(station.device_id)
        self._index = self._dice.randrange(len(station.readings))
        self._state: dict[str, Any] = {"interval": 1, "unit": "Cel", "firmware": "1.0.0"}
        self._wake = asyncio.Event()

    async def run(self, host: str, port: int) -> None:
        """Live for ever; reconnects when the gateway was away."""
        station = self._station
        while True:
            try:
                async with aiomqtt.Client(
                    host,
                    port,
                    identifier=station.device_id,
                    username=station.username,
                    password=station.password,
                    protocol=aiomqtt.ProtocolVersion.V5,
                ) as client:
                    await client.subscribe([(f"{self._topic}/shadow/delta", 1), (f"{self._topic}/commands/request", 1)])
                    await self._say(client, "shadow/reported", {"reported": self._state})
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(self._measure(client))
                        tasks.create_task(self._listen(client))
            except* aiomqtt.MqttError as errors:
                why = "; ".join(str(error) for error in errors.exceptions)
                logger.info("station_reconnects", device=station.device_id, why=why)
            await asyncio.sleep(RECONNECT_S * self._dice.uniform(0.5, 1.5))

    async def _measure(self, client: aiomqtt.Client) -> None:
        loose_wire = self._station.device_id.endswith("-3")
        readings = self._station.readings
        while not _is_cancelled():
            measured, celsius = readings[self._index % len(readings)]
            self._index += 1
            if loose_wire and self._index % BAD_VALUE_EVERY == 0:
                await client.publish(f"{self._topic}/telemetry/temperature", str(celsius).replace(".", ","), qos=1)
            else:
                unit = self._state["unit"]
                value = celsius if unit == "Cel" else round(celsius * 9 / 5 + 32, 1)
                await self._say(client, "telemetry/temperature", {"value": value, "unit": unit, "measured": measured})
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._state["interval"]):
                    await self._wake.wait()

    async def _listen(self, client: aiomqtt.Client) -> None:
        async for message in client.messages:
            if _is_cancelled():
                break
            envelope = orjson.loads(message.payload)
            if str(message.topic).endswith("/shadow/delta"):
                await self._honour(client, envelope["payload"])
            else:
                await self._obey(client, envelope["metadata"]["messageId"], envelope["payload"])

    async def _honour(self, client: aiomqtt.Client, delta: dict[str, Any]) -> None:
        """Take on what can be; say why of the rest."""
        taken: dict[str, Any] = {}
        refused: dict[str, str] = {}
        for name, value in delta["delta"].items():
            if name in WISHES and WISHES[name](value):
                taken[name] = value
            else:
                refused[f"/{name}"] = f"a weather station takes {BOUNDS}"
        if taken or refused:
            self._state.update(taken)
            self._wake.set()
            await self._say(
                client, "shadow/reported", {"reported": taken, "refused": refused, "sequence": delta["sequence"]}
            )

    async def _obey(self, client: aiomqtt.Client, command_id: str, command: dict[str, Any]) -> None:
        async def answer(**facts: Any) -> None:
            body = {"metadata": {"correlationId": command_id}, "payload": facts}
            await self._say(client, "commands/response", body)

        if command.get("action") != "restart":
            await answer(status="rejected", reason='a weather station knows {"action": "restart"}')
            return
        for progress in (20, 60):
            await answer(status="running", progress=progress)
            await asyncio.sleep(0.5)
        await answer(status="succeeded", result={"firmware": self._state["firmware"], "restarted": True})

    async def _say(self, client: aiomqtt.Client, place: str, content: dict[str, Any]) -> None:
        await client.publish(f"{self._topic}/{place}", orjson.dumps(content), qos=1)
