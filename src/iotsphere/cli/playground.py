"""A playground: an MQTT door without accounts and topic rules, for conformance suites; nothing of it is kept."""

from __future__ import annotations

import ipaddress
import json
import tempfile
from pathlib import Path
from typing import Annotated

import structlog
import typer

from .. import logs
from ..endpoints import parse_address, shown
from ..entities.errors import RequestInvalid
from ..settings import Settings
from .console import out, settings_of
from .console import run as run_loop

log = structlog.get_logger("iotsphere.playground")


def playground(
    mqtt: Annotated[str, typer.Option(help="HOST:PORT on loopback (port 0 = any free one)")] = "127.0.0.1:1883",
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON when ready")] = False,
) -> None:
    """Run an MQTT door that lets anybody publish anything to any topic, in memory and on loopback only.

    It is the same protocol, session and log as the real door, so that MQTT conformance suites can run against it.

    Example:  iotsphere playground --mqtt 127.0.0.1:1883
    """
    host, _ = parse_address(mqtt)
    if not is_loopback(host):
        raise RequestInvalid(f"{host!a} is not loopback: a playground lets anybody in, so choose 127.0.0.1")
    with tempfile.TemporaryDirectory(prefix="iotsphere-playground-") as folder:
        settings = settings_of(data=Path(folder), log="memory", durability="memory", domains=("playground",), mqtt=mqtt)
        logs.configure(settings.log_level, settings.log_format)
        run_loop(_play(settings, as_json))


def is_loopback(host: str) -> bool:
    """Tell whether nobody but this machine reaches an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _play(settings: Settings, as_json: bool) -> None:
    from ..app import App
    from ..containers.doors import playground_door

    async with App(settings, ()) as gateway:
        gateway.stop_on_signals()
        door = playground_door(gateway.container)
        try:
            address = shown(await door.start(*parse_address(settings.mqtt)))
        except OSError as error:
            raise RequestInvalid(
                f"cannot listen on {settings.mqtt}: {error.strerror}; choose another --mqtt"
            ) from error
        log.warning("playground_open", address=address, remedy="stop it when the tests are over: anybody may use it")
        try:
            if as_json:
                print(json.dumps({"mqtt": address}), flush=True)
            else:
                out.print(f"A playground for MQTT is open at {address}: no accounts, any topic, nothing kept.")
                out.print("Ctrl-C closes it.")
            await gateway.stopped.wait()
            await door.drain(settings.drain_seconds)
        finally:
            await door.close()
