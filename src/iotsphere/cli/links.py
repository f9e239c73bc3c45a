"""A way into the console: a link that signs in once."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ..endpoints import console_link, read_endpoints
from ..entities.errors import Unavailable
from ..entities.principal import OPERATOR
from .console import AsJson, Data, LogUrl, app_module, known_place, run


def console(
    user: Annotated[str, typer.Option(help="Who signs in; changes and commands carry this name")] = OPERATOR,
    url: Annotated[
        str | None, typer.Option(help=r"The console's address \[default: the gateway that uses the data folder]")
    ] = None,
    data: Data = None,
    log: LogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Print a link that signs an operator in to the console, once, within 15 minutes.

    Example:  iotsphere console --user ann
    """
    settings = known_place(data, log)
    if url is None:
        known = read_endpoints(settings.data)
        if known is None or "http" not in known:
            raise Unavailable(
                f"no running gateway with an HTTP door uses {settings.data.resolve()}; start one with: iotsphere up, "
                "or name its data folder with --data, or its address with --url"
            )
        url = str(known["http"])

    async def work() -> str:
        async with app_module().registers(settings) as box:
            return str(await box.sign_in().invite(settings.domains[0], user))

    link = console_link(url, run(work()))
    print(json.dumps({"console": link}) if as_json else link)
