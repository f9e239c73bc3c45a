"""Who may connect: devices with their secrets, and tokens for users and services."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from ..settings import Settings
from ..use_cases.access.tokens import operator
from .console import AsJson, Data, LogUrl, app_module, err, known_place, out, run, settings_of

app = typer.Typer(no_args_is_help=True, help="Admit, list and remove devices.")


@app.command("add")
def device_add(device_id: str, data: Data = None, log: LogUrl = None, as_json: AsJson = False) -> None:
    """Admit a device and print its credentials, once.  Example:  iotsphere device add sensor-7"""

    async def work() -> Any:
        async with app_module().registers(_place(data, log)) as box:
            return await box.devices().register(_domain(), device_id)

    _show(run(work()), as_json)


@app.command("list")
def device_list(data: Data = None, log: LogUrl = None, as_json: AsJson = False) -> None:
    """List the devices of the first domain.  Example:  iotsphere device list --json"""

    async def work() -> list[Any]:
        found: list[Any] = []
        async with app_module().registers(known_place(data, log)) as box:
            while page := await box.devices().list(_domain(), found[-1].device_id if found else "", 1_000):
                found.extend(page)
        return found

    for device in run(work()):
        print(
            json.dumps({"device_id": device.device_id, "registered_at": device.registered_at})
            if as_json
            else device.device_id
        )


@app.command("remove")
def device_remove(device_id: str, data: Data = None, log: LogUrl = None, as_json: AsJson = False) -> None:
    """Remove a device; its connections end within seconds.  Example:  iotsphere device remove sensor-7"""

    async def work() -> None:
        async with app_module().registers(known_place(data, log)) as box:
            await box.devices().remove(_domain(), device_id)

    run(work())
    print(json.dumps({"removed": device_id}) if as_json else f"removed {device_id}")


def token(
    subject: Annotated[str, typer.Argument(help="user:ID, service:NAME or device:ID")],
    grant: Annotated[list[str], typer.Option("--grant", help="ACTION:FILTER; ACTION is publish, subscribe or command")],
    hours: Annotated[float, typer.Option(help="How long it is good for")] = 24,
    data: Data = None,
    log: LogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Issue a token.  Example:  iotsphere token user:ann --grant 'subscribe:iotsphere/devices/+/telemetry/#'"""

    async def work() -> Any:
        async with app_module().registers(_place(data, log)) as box:
            return box.tokens().issue(operator(_domain()), subject, grant, (), int(hours * 3600))

    issued = run(work())
    if as_json:
        print(
            json.dumps(
                {
                    "token": issued.token,
                    "token_id": issued.token_id,
                    "subject": issued.subject,
                    "expires_at": issued.expires_at,
                }
            )
        )
    else:
        print(issued.token)


@app.command("rotate")
def device_rotate(device_id: str, data: Data = None, log: LogUrl = None, as_json: AsJson = False) -> None:
    """Give a device a new password; the old one ends at once.  Example:  iotsphere device rotate sensor-7"""

    async def work() -> Any:
        async with app_module().registers(known_place(data, log)) as box:
            return await box.devices().rotate(_domain(), device_id)

    _show(run(work()), as_json)


def _show(made: Any, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"device_id": made.device_id, "username": made.username, "password": made.password}))
    else:
        out.print(
            f"device   {escape(made.device_id)}\nusername {escape(made.username)}\npassword {escape(made.password)}",
            highlight=False,
        )


def _place(data: Path | None, log: str | None) -> Settings:
    """The settings; says so when they name a folder that no gateway has used, since its secrets will be new."""
    settings = settings_of(data=data, log=log)
    if not settings.secrets_file.exists():
        err.print(
            f"{settings.data.resolve()} is new: only a gateway on this folder will know this; "
            "name another one with --data or IOTSPHERE_DATA",
            style="yellow",
        )
    return settings


def _domain() -> str:
    return settings_of().domains[0]
