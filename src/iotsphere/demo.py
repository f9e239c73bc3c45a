"""The demonstration of `iotsphere up --demo`: simulated devices beside a running gateway, as its real MQTT clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from .app import App
from .drivers import simulated_devices as simulated
from .endpoints import parse_address
from .entities.errors import Conflict, RequestInvalid

GONE_WITHIN_S: Final = 5.0


@asynccontextmanager
async def demonstration(app: App) -> AsyncIterator[dict[str, str]]:
    """Run the simulated stations; yields the credentials of a further device for the user to play with."""
    if "mqtt" not in app.endpoints:
        raise RequestInvalid(
            "the demonstration's devices speak no TLS: give the plain MQTT door an address with --mqtt"
        )
    domain = app.settings.domains[0]
    host, port = parse_address(app.endpoints["mqtt"])
    tasks: list[asyncio.Task[None]] = []
    try:
        for device_id in simulated.station_ids():
            station = await _device(app, device_id)
            await app.container.state().roster.keep(domain, device_id, {"city": device_id.split("-")[1]})
            readings = simulated.readings_of(device_id)
            station_of = simulated.Weather(simulated.Station(**station, readings=readings), domain)
            tasks.append(asyncio.get_running_loop().create_task(station_of.run(host, port), name=device_id))
        yield await _device(app, "my-device")
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=GONE_WITHIN_S)  # a client's library may lose a cancellation


async def _device(app: App, device_id: str) -> dict[str, str]:
    """A device whose credentials are remembered in the data folder, so that a restart does not lock it out."""
    path = app.settings.data / "demo" / f"{device_id}.json"
    domain = app.settings.domains[0]
    devices = app.container.devices()
    if path.exists():
        known: dict[str, str] = json.loads(path.read_text())
        if await devices.verify(known["username"], known["password"]) is not None:
            return known
    try:
        made = await devices.register(domain, device_id)
    except Conflict:
        made = await devices.rotate(domain, device_id)
    known = {"device_id": made.device_id, "username": made.username, "password": made.password}
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600)
    path.write_text(json.dumps(known))
    return known
