"""Simulated weather stations for the demo: real MQTT clients that replay measured temperatures.

The data are hourly temperatures of San Francisco and Seattle in 2010 (NOAA, public domain) as the package
`vega_datasets` ships them; one hour passes each second. One station of each city has a loose wire and now and then
sends a value with a decimal comma, so that there is a dead letter to look at.
"""

from __future__ import annotations

import asyncio
import csv
import random
from collections.abc import Sequence
from importlib import resources
from importlib.util import find_spec
from typing import Final, NamedTuple

import aiomqtt
import orjson
import structlog

from ..entities.errors import RequestInvalid

logger = structlog.get_logger("iotsphere.demo")

SETS: Final = {"sf": "sf-temps.csv", "seattle": "seattle-temps.csv"}
STATIONS_PER_CITY: Final = 3
BAD_VALUE_EVERY: Final = 30
RECONNECT_S: Final = 2.0


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


async def run_station(host: str, port: int, station: Station, domain: str) -> None:
    """Publish one reading a second for ever; reconnects when the gateway was away."""
    dice = random.Random(station.device_id)
    index = dice.randrange(len(station.readings))
    topic = f"{domain}/devices/{station.device_id}/telemetry/temperature"
    loose_wire = station.device_id.endswith("-3")
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
                while True:
                    measured, celsius = station.readings[index % len(station.readings)]
                    index += 1
                    if loose_wire and index % BAD_VALUE_EVERY == 0:
                        await client.publish(topic, str(celsius).replace(".", ","), qos=1)
                    else:
                        reading = {"value": celsius, "unit": "Cel", "measured": measured}
                        await client.publish(topic, orjson.dumps(reading), qos=1)
                    await asyncio.sleep(1)
        except aiomqtt.MqttError as error:
            logger.info("station_reconnects", device=station.device_id, why=str(error))
            await asyncio.sleep(RECONNECT_S * dice.uniform(0.5, 1.5))
