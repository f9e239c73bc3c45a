"""The command line: start a gateway, admit devices, issue tokens, publish, listen, and see what became of messages."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer
import uvloop
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from . import __version__, logs
from .app import ROLES, App, read_endpoints, registers
from .drivers.http_client import HttpClient
from .entities.errors import IotSphereError, RequestInvalid, Unavailable
from .settings import Settings
from .use_cases.tokens import operator

T = TypeVar("T")
API: Final = "/api/v1"
OPERATOR_TOKEN_S: Final = 3600

out = Console()
err = Console(stderr=True)
app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="IoTSphere: devices on MQTT, browsers and services on WebSockets, one durable log between them.",
)
devices = typer.Typer(no_args_is_help=True, help="Admit, list and remove devices.")
letters = typer.Typer(no_args_is_help=True, help="See why messages were refused; send them again or drop them.")
app.add_typer(devices, name="device")
app.add_typer(letters, name="dead-letters")

Data = Annotated[Path, typer.Option("--data", envvar="IOTSPHERE_DATA", help="Folder of the gateway's data")]
LogUrl = Annotated[str, typer.Option("--log", envvar="IOTSPHERE_LOG", help="sqlite, memory or redis://HOST:PORT/DB")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line")]
Url = Annotated[
    str | None,
    typer.Option("--url", help="The gateway's HTTP or WebSocket URL; default: the one that uses the data folder"),
]
Token = Annotated[
    str | None,
    typer.Option("--token", envvar="IOTSPHERE_TOKEN", help="Default: made from the secrets in the data folder"),
]
DEFAULT_DATA: Final = Path(".iotsphere")


def main() -> None:
    """Run the command line; errors end in one line that says what to do, and exit code 1 (try again) or 2."""
    try:
        app()
    except IotSphereError as error:
        err.print(f"[red]{escape(error.code)}[/]: {escape(error.message)}")
        sys.exit(1 if error.retry else 2)


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"iotsphere {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version")
    ] = False,
) -> None:
    """Every command has --help with examples."""


def _settings(**given: object) -> Settings:
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]  # pydantic checks them
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise RequestInvalid(f"setting {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


# -- running a gateway ------------------------------------------------------------------------------------------------


@app.command()
def up(
    data: Data = DEFAULT_DATA,
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
    settings = _settings(data=data, mqtt=mqtt, websocket=websocket, http=http, log=log, durability=durability)
    _serve(settings, ROLES, demo, as_json)


@app.command()
def run(
    role: Annotated[str, typer.Argument(help=f"One of: {', '.join(ROLES)}")],
    data: Data = DEFAULT_DATA,
    address: Annotated[str | None, typer.Option("--listen", help="HOST:PORT of this role's door")] = None,
    log: Annotated[str | None, typer.Option(help="redis://HOST:PORT/DB")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON when ready")] = False,
) -> None:
    """Run one role as a process of its own, over a log that several processes share.

    Example:  iotsphere run ingress --log redis://127.0.0.1:6379/0 --listen 127.0.0.1:1883
    """
    if role not in ROLES:
        raise RequestInvalid(f"{role!a} is no role: choose from {', '.join(ROLES)}")
    name = {"ingress": "mqtt", "websocket": "websocket", "api": "http"}[role]
    settings = _settings(data=data, log=log, **{name: address})
    _serve(settings, (role,), False, as_json)


def _serve(settings: Settings, roles: tuple[str, ...], demo: bool, as_json: bool) -> None:
    logs.configure(settings.log_level)
    _run(_gateway(settings, roles, demo, as_json))


async def _gateway(settings: Settings, roles: tuple[str, ...], demo: bool, as_json: bool) -> None:
    async with App(settings, roles) as gateway:
        gateway.stop_on_signals()
        sample = await gateway.start_demo() if demo else None
        token = gateway.operator_token()
        if as_json:
            line = {**gateway.endpoints, "data": str(settings.data), "token": token}
            print(json.dumps(line), flush=True)
        else:
            _welcome(gateway, token, sample)
        await gateway.stopped.wait()
    if gateway.failure is not None:
        raise Unavailable(f"the gateway stopped by itself: {gateway.failure}; see the log lines above")


def _welcome(gateway: App, token: str, sample: dict[str, str] | None) -> None:
    table = Table.grid(padding=(0, 2))
    names = {"mqtt": "MQTT (devices)", "websocket": "WebSocket", "http": "HTTP API"}
    for name, place in gateway.endpoints.items():
        table.add_row(f"[bold]{names[name]}[/]", escape(place))
    table.add_row("[bold]Data[/]", escape(str(gateway.settings.data.resolve())))
    if sample is not None:
        table.add_row(
            "[bold]A device to try[/]", f"username {escape(sample['username'])}  password {escape(sample['password'])}"
        )
    out.print(Panel(table, title="IoTSphere is running", subtitle="Ctrl-C stops it", expand=False))
    folder = "" if gateway.settings.data == DEFAULT_DATA else f" --data {gateway.settings.data}"
    if sample is not None and "mqtt" in gateway.endpoints:
        host, _, port = gateway.endpoints["mqtt"].rpartition(":")
        out.print("Publish:  ", end="")
        out.print(
            f"mosquitto_pub -h {host} -p {port} -u {sample['username']} -P {sample['password']} "
            f"-t iotsphere/devices/{sample['device_id']}/telemetry/temperature -m 21.5 -q 1",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    out.print(
        f"Listen:    iotsphere tail 'iotsphere/devices/+/telemetry/#' --from latest{folder}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    out.print(f"Operator token (30 days): {token}", markup=False, highlight=False, soft_wrap=True)
    sys.stdout.flush()


# -- devices and tokens -----------------------------------------------------------------------------------------------


@devices.command("add")
def device_add(device_id: str, data: Data = DEFAULT_DATA, log: LogUrl = "sqlite", as_json: AsJson = False) -> None:
    """Admit a device and print its credentials, once.  Example:  iotsphere device add sensor-7"""

    async def work() -> Any:
        async with registers(_settings(data=data, log=log)) as box:
            return await box.devices().register(_domain(), device_id)

    made = _run(work())
    shown = {"device_id": made.device_id, "username": made.username, "password": made.password}
    if as_json:
        print(json.dumps(shown))
    else:
        out.print(
            f"device   {escape(made.device_id)}\nusername {escape(made.username)}\npassword {escape(made.password)}",
            highlight=False,
        )


@devices.command("list")
def device_list(data: Data = DEFAULT_DATA, log: LogUrl = "sqlite", as_json: AsJson = False) -> None:
    """List the devices of the first domain.  Example:  iotsphere device list --json"""

    async def work() -> list[Any]:
        found: list[Any] = []
        async with registers(_settings(data=data, log=log)) as box:
            while page := await box.devices().list(_domain(), found[-1].device_id if found else "", 1_000):
                found.extend(page)
        return found

    for device in _run(work()):
        print(
            json.dumps({"device_id": device.device_id, "registered_at": device.registered_at})
            if as_json
            else device.device_id
        )


@devices.command("remove")
def device_remove(device_id: str, data: Data = DEFAULT_DATA, log: LogUrl = "sqlite", as_json: AsJson = False) -> None:
    """Remove a device; its connections end within seconds.  Example:  iotsphere device remove sensor-7"""

    async def work() -> None:
        async with registers(_settings(data=data, log=log)) as box:
            await box.devices().remove(_domain(), device_id)

    _run(work())
    print(json.dumps({"removed": device_id}) if as_json else f"removed {device_id}")


@app.command()
def token(
    subject: Annotated[str, typer.Argument(help="user:ID, service:NAME or device:ID")],
    grant: Annotated[list[str], typer.Option("--grant", help="ACTION:FILTER; ACTION is publish, subscribe or command")],
    hours: Annotated[float, typer.Option(help="How long it is good for")] = 24,
    data: Data = DEFAULT_DATA,
    log: LogUrl = "sqlite",
    as_json: AsJson = False,
) -> None:
    """Issue a token.  Example:  iotsphere token user:ann --grant 'subscribe:iotsphere/devices/+/telemetry/#'"""

    async def work() -> Any:
        async with registers(_settings(data=data, log=log)) as box:
            return box.tokens().issue(operator(_domain()), subject, grant, (), int(hours * 3600))

    issued = _run(work())
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


def _domain() -> str:
    return _settings().domains[0]


# -- messages ---------------------------------------------------------------------------------------------------------


def _gateway_of(data: Path, url: str | None, token: str | None, door: str) -> tuple[str, str]:
    """URL and token for a command that talks to a running gateway."""
    if url is None:
        known = read_endpoints(data)
        if known is None or door not in known:
            raise Unavailable(
                f"no running gateway uses {data}; start one with: iotsphere up, or name it with --url and --token"
            )
        url = str(known[door])
    if token is None:
        if not (data / "secrets.json").exists():
            raise RequestInvalid("no token: give --token or IOTSPHERE_TOKEN, or --data with the gateway's data folder")
        token = App(_settings(data=data, log="memory"), ()).operator_token()
    return url, token


def _http(data: Path, url: str | None, token: str | None) -> HttpClient:
    return HttpClient(*_gateway_of(data, url, token, "http"))


@app.command()
def publish(
    topic: str,
    payload: Annotated[str, typer.Argument(help="JSON, or a plain number")],
    data: Data = DEFAULT_DATA,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Publish one message and wait until it is durable.  Example:  iotsphere publish iotsphere/system/status '{"ok":true}'"""
    from . import connect

    async def work() -> Any:
        place, credential = _gateway_of(data, url, token, "websocket")
        async with connect(place, token=credential) as broker:
            return await broker.publish(topic, payload.encode())

    receipt = _run(work())
    shown = {"message_id": receipt.message_id, "position": receipt.position, "duplicate": receipt.duplicate}
    print(json.dumps(shown) if as_json else f"{receipt.message_id} at {receipt.position}")


@app.command()
def tail(
    filters: Annotated[list[str], typer.Argument(help="Filters such as 'iotsphere/devices/+/telemetry/#'")],
    start: Annotated[str, typer.Option("--from", help="earliest, latest, live, a cursor or a time")] = "live",
    count: Annotated[int, typer.Option(help="Stop after so many messages; 0 = never")] = 0,
    data: Data = DEFAULT_DATA,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Print messages as they come, one envelope a line with --json.

    Example:  iotsphere tail 'iotsphere/devices/+/telemetry/#' --from earliest --count 10 --json
    """
    place, credential = _gateway_of(data, url, token, "websocket")
    try:
        _run(_tail(place, credential, filters, start, count, as_json))
    except (KeyboardInterrupt, BrokenPipeError):
        sys.stderr.close()


async def _tail(url: str, token: str, filters: list[str], start: str, count: int, as_json: bool) -> None:
    from . import connect
    from .adapters.envelope import encode

    seen = 0
    async with connect(url, token=token) as broker:
        subscription = broker.subscribe(*filters, from_=start, on_gap=_tell_gap)
        async for message in subscription:
            if as_json:
                print(encode(message).decode(), flush=True)
            else:
                about = message.metadata
                print(f"{about.timestamp}  {about.topic}  {message.payload.decode()}", flush=True)
            seen += 1
            if count and seen >= count:
                return


def _tell_gap(gap: object) -> None:
    err.print(f"[yellow]missed[/]: {escape(str(gap))}")


@app.command()
def ledger(data: Data = DEFAULT_DATA, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Show for each reader that accepted = applied + superseded + expired + dead-lettered + lost + pending."""
    answer = _http(data, url, token)("GET", f"{API}/ledger")
    if as_json:
        print(json.dumps(answer))
        return
    table = Table(title="Ledger", title_justify="left")
    columns = ("accepted", "applied", "superseded", "expired", "dead_lettered", "lost", "pending", "imbalance")
    table.add_column("reader")
    table.add_column("channel")
    for name in columns:
        table.add_column(name.replace("_", "-"), justify="right")
    for row in answer["readers"]:
        table.add_row(str(row["reader"]), str(row["channel"]), *(str(row[name]) for name in columns))
    out.print(table)


@app.command()
def trace(message_id: str, data: Data = DEFAULT_DATA, url: Url = None, token: Token = None) -> None:
    """Tell where a message went.  Example:  iotsphere trace 0197f3c2-…"""
    print(json.dumps(_http(data, url, token)("GET", f"{API}/messages/{message_id}/trace"), indent=2))


@letters.command("list")
def letters_list(
    reason: Annotated[str | None, typer.Option(help="Only this reason")] = None,
    limit: int = 50,
    data: Data = DEFAULT_DATA,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List refused messages, newest first."""
    answer = _http(data, url, token)("GET", f"{API}/dead-letters", {"reason": reason, "limit": limit})
    for item in answer["dead_letters"]:
        print(json.dumps(item) if as_json else f"{item['id']}  {item['reason']:<22}{item['topic']}  {item['detail']}")


@letters.command("show")
def letters_show(letter_id: str, data: Data = DEFAULT_DATA, url: Url = None, token: Token = None) -> None:
    """Show one refused message with its reason and first bytes."""
    print(json.dumps(_http(data, url, token)("GET", f"{API}/dead-letters/{letter_id}"), indent=2))


@letters.command("redrive")
def letters_redrive(letter_id: str, data: Data = DEFAULT_DATA, url: Url = None, token: Token = None) -> None:
    """Publish a refused message again, through the same checks."""
    print(json.dumps(_http(data, url, token)("POST", f"{API}/dead-letters/{letter_id}/redrive")))


@letters.command("discard")
def letters_discard(letter_id: str, data: Data = DEFAULT_DATA, url: Url = None, token: Token = None) -> None:
    """Mark a refused message as dealt with."""
    _http(data, url, token)("DELETE", f"{API}/dead-letters/{letter_id}")
    print(f"discarded {letter_id}")
