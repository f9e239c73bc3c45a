"""Running a gateway: every door in one process, or one role alone."""

from __future__ import annotations

import gc
import json
import sys
from contextlib import AsyncExitStack
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from .. import logs
from ..entities.errors import RequestInvalid, Unavailable
from ..settings import ROLES, Settings
from .console import DEFAULT_DATA, Data, out, settings_of
from .console import run as run_loop


def up(
    data: Data = None,
    mqtt: Annotated[str | None, typer.Option(help="HOST:PORT for devices (port 0 = any free one)")] = None,
    websocket: Annotated[str | None, typer.Option(help="HOST:PORT for browsers and services")] = None,
    http: Annotated[str | None, typer.Option(help="HOST:PORT for the HTTP API")] = None,
    log: Annotated[str | None, typer.Option(help="sqlite (default), memory or redis://HOST:PORT/DB")] = None,
    durability: Annotated[str | None, typer.Option(help="fsynced (default), logged or memory")] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Run simulated devices that replay real measurements")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON when ready")] = False,
) -> None:
    """Run every door in one process.

    Examples:  iotsphere up --demo   |   iotsphere up --log redis://127.0.0.1:6379/0 --mqtt 0.0.0.0:1883
    """
    settings = settings_of(data=data, mqtt=mqtt, websocket=websocket, http=http, log=log, durability=durability)
    _serve(settings, ROLES, demo, as_json)


def run(
    role: Annotated[str, typer.Argument(help=f"One of: {', '.join(ROLES)}")],
    data: Data = None,
    address: Annotated[
        str | None,
        typer.Option("--listen", help="HOST:PORT of this role's door; a role without one then has the HTTP door"),
    ] = None,
    log: Annotated[str | None, typer.Option(help="redis://HOST:PORT/DB")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON when ready")] = False,
) -> None:
    """Run one role as a process of its own, over a log that several processes share.

    Example:  iotsphere run ingress --log redis://127.0.0.1:6379/0 --listen 127.0.0.1:1883
    """
    if role not in ROLES:
        raise RequestInvalid(f"{role!a} is no role: choose from {', '.join(ROLES)}")
    name = {"ingress": "mqtt", "websocket": "websocket"}.get(role, "http")
    settings = settings_of(data=data, log=log, **{name: address})
    roles: tuple[str, ...] = (role,)
    if role == "bridge" and not settings.bridges:
        raise RequestInvalid('no bridge is declared: set IOTSPHERE_BRIDGES to its file, such as ["/etc/bridge.toml"]')
    if role not in ("ingress", "websocket", "api") and address is not None:
        roles = ("api", role)
    _serve(settings, roles, False, as_json)


def _serve(settings: Settings, roles: tuple[str, ...], demo: bool, as_json: bool) -> None:
    logs.configure(settings.log_level, settings.log_format)
    gc.disable()  # all that is made at a start is kept: to look for garbage in it takes a sixth of its time
    run_loop(_gateway(settings, roles, demo, as_json))


async def _gateway(settings: Settings, roles: tuple[str, ...], demo: bool, as_json: bool) -> None:
    from ..app import App

    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(App(settings, roles))
        gc.enable()
        gateway.stop_on_signals()
        sample = None
        if demo:
            from ..demo import demonstration

            sample = await stack.enter_async_context(demonstration(gateway))
        token = gateway.operator_token()
        link = await gateway.console_link()
        if as_json:
            line = {**gateway.endpoints, "data": str(settings.data), "token": token, "console": link}
            print(json.dumps(line), flush=True)
        else:
            _welcome(gateway, (token, link), sample)
        await gateway.stopped.wait()
        if not as_json:
            out.print("Stopping; what was accepted is kept.")
    if gateway.failure is not None:
        raise Unavailable(f"the gateway stopped by itself: {gateway.failure}; see the log lines above")


def _welcome(gateway: Any, ways_in: tuple[str, str | None], sample: dict[str, str] | None) -> None:
    token, link = ways_in
    table = Table.grid(padding=(0, 2))
    names = {"mqtt": "MQTT (devices)", "mqtts": "MQTT with TLS", "websocket": "WebSocket", "http": "HTTP API"}
    for name, place in gateway.endpoints.items():
        table.add_row(f"[bold]{names[name]}[/]", escape(place))
    table.add_row("[bold]Data[/]", escape(str(gateway.settings.data.resolve())))
    if sample is not None:
        table.add_row("[bold]A device to try[/]", f"username {escape(sample['username'])}")
        table.add_row("", f"password {escape(sample['password'])}")
    out.print(Panel(table, title="IoTSphere is running", subtitle="Ctrl-C stops it", expand=False))
    folder = "" if gateway.settings.data == DEFAULT_DATA else f" --data {gateway.settings.data}"
    if link is not None:
        out.print(
            f"Console:  {link}\n          (signs in once, within 15 minutes; for another link: iotsphere console{folder})",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    if sample is not None and "mqtt" in gateway.endpoints:
        host, _, port = gateway.endpoints["mqtt"].rpartition(":")
        out.print("Publish:  ", end="")
        out.print(
            f"mosquitto_pub -V mqttv5 -h {host} -p {port} -u {sample['username']} -P {sample['password']} "
            f"-t iotsphere/devices/{sample['device_id']}/telemetry/temperature -m 21.5 -q 1",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    out.print(
        f"Listen:   iotsphere tail 'iotsphere/devices/+/telemetry/#' --from latest{folder}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if sample is not None:
        out.print(
            f"Refused:  iotsphere dead-letters list{folder}     (one station of each city has a loose wire)",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    out.print(f"Proof:    iotsphere ledger{folder}", markup=False, highlight=False, soft_wrap=True)
    out.print(f"Operator token (30 days): {token}", markup=False, highlight=False, soft_wrap=True)
    sys.stdout.flush()
