"""What all commands share: where they print, the options that recur, and how they find a running gateway."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final, TypeVar, cast
from urllib.parse import quote

import typer
import uvloop
from pydantic import ValidationError
from rich.console import Console

from ..adapters import strict_json
from ..drivers.http_client import HttpClient
from ..entities.errors import RequestInvalid, Unavailable
from ..settings import Settings

T = TypeVar("T")
API: Final = "/api/v1"
DEFAULT_DATA: Final = Path(".iotsphere")

out = Console()
# Without colours for numbers: those in an id such as sensor-7 are no figures.
err = Console(stderr=True, highlight=False)

Data = Annotated[
    Path | None,
    typer.Option("--data", envvar="IOTSPHERE_DATA", help=r"Folder of the gateway's data \[default: .iotsphere]"),
]
LogUrl = Annotated[
    # One in memory is its gateway's alone, so that it is of no use to another process.
    str | None, typer.Option("--log", envvar="IOTSPHERE_LOG", help="sqlite (default) or redis://HOST:PORT/DB")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line")]
Url = Annotated[
    str | None,
    typer.Option("--url", help=r"The gateway's HTTP or WebSocket URL \[default: the one that uses the data folder]"),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token", envvar="IOTSPHERE_TOKEN", help=r"What to sign in with \[default: made from the gateway's secrets]"
    ),
]


def object_of(text: str, what: str) -> dict[str, object]:
    """A JSON object that was given as an argument, or, for ``-``, on standard input. Raises RequestInvalid and MessageRefused."""
    raw = sys.stdin.buffer.read() if text == "-" else text.encode("utf-8", "surrogateescape")
    value = strict_json.parse(strict_json.decode(raw))
    if not isinstance(value, dict):
        raise RequestInvalid(f'{what} is no JSON object; write it as \'{{"name": "value"}}\'')
    return value


def segment(text: str) -> str:
    """A text as one part of a path, whatever it holds."""
    return quote(text, safe="")


def settings_of(**given: object) -> Settings:
    """The settings with what the command line gave. Raises RequestInvalid, naming the setting."""
    try:
        return Settings.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "settings"
        raise RequestInvalid(f"{where}: {first['msg']}") from error


def known_place(data: Path | None, log: str | None) -> Settings:
    """The settings for a command that makes no data folder. Raises RequestInvalid where no gateway has been."""
    settings = settings_of(data=data, log=log)
    if not settings.secrets_file.exists():
        raise RequestInvalid(
            f"there is no gateway's data in {settings.data.resolve()}: name its folder with --data DIR or "
            "IOTSPHERE_DATA, or start a gateway here with: iotsphere up"
        )
    return settings


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the fast event loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def app_module() -> ModuleType:
    """The module ``app``, for a command that opens no door: without FastAPI, which is a quarter of the time to start.

    dependency_injector looks for it, to help applications that have it; nothing here asks for that help.
    """
    modules = cast("dict[str, ModuleType | None]", sys.modules)
    spared = {"fastapi", "starlette"} - modules.keys() if "dependency_injector.wiring" not in modules else set()
    modules.update(dict.fromkeys(spared))
    try:
        from .. import app
    finally:
        for name in spared:
            del modules[name]
    return app


def gateway_of(data: Path | None, url: str | None, token: str | None, door: str) -> tuple[str, str]:
    """URL and token for a command that talks to a running gateway. Raises Unavailable when none runs."""
    from ..endpoints import read_endpoints

    settings = settings_of(data=data)
    if url is None:
        known = read_endpoints(settings.data)
        if known is None or door not in known:
            raise Unavailable(
                f"no running gateway uses {settings.data.resolve()}; start one with: iotsphere up, name its data folder "
                "with --data or IOTSPHERE_DATA, or name the gateway with --url and --token"
            )
        url = str(known[door])
    if token is None:
        if not settings.secrets_file.exists():
            raise RequestInvalid("no token: give --token or IOTSPHERE_TOKEN, or --data with the gateway's data folder")
        token = str(app_module().App(settings.model_copy(update={"log": "memory"}), ()).operator_token())
    return url, token


def http_of(data: Path | None, url: str | None, token: str | None) -> HttpClient:
    """A caller of the gateway's HTTP door."""
    return HttpClient(*gateway_of(data, url, token, "http"))
