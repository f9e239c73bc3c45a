"""The command line: start a gateway, admit devices, issue tokens, publish, listen, steer devices, see what became of it."""

from __future__ import annotations

import sys
from inspect import cleandoc
from typing import Annotated

import typer
from rich.markup import escape

from .. import __version__
from ..entities import message
from ..entities.errors import IotSphereError
from . import commands, dead_letters, devices, links, messages, playground, serving, shadows, spark
from .console import err, out
from .remedies import remedy


def _flowing(text: str | None) -> str:
    """The text of a help page with each paragraph as one line, for Typer keeps the breaks of all but the first."""
    return "\n\n".join(part.replace("\n", " ") for part in cleandoc(text or "").split("\n\n"))


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="IoTSphere: devices on MQTT, browsers and services on WebSockets, one durable log between them.",
)
app.add_typer(devices.app, name="device")
app.add_typer(shadows.app, name="shadow")
app.add_typer(commands.app, name="command")
app.add_typer(dead_letters.app, name="dead-letters")
for command in (
    serving.up, serving.run, playground.playground, devices.token, messages.publish, messages.tail, messages.ledger,
    messages.trace, links.console, spark.spark,
):  # fmt: skip
    app.command(help=_flowing(command.__doc__))(command)


def main() -> None:
    """Run the command line; errors end in one line that says what to do, and exit code 1 (try again) or 2."""
    try:
        app()
    except IotSphereError as error:
        err.print(f"[red]{escape(error.code)}[/]: {escape(error.message)}", soft_wrap=True)
        if (found := remedy(error.code, sys.argv[1:])) is not None:
            why, command = found
            err.print(f"To {why}:\n  {command}", markup=False, soft_wrap=True)
        sys.exit(1 if error.retry else 2)


def _version(wanted: bool) -> None:
    if wanted:
        out.print(
            f"iotsphere {__version__}{'' if message.__file__.endswith('.py') else ' (compiled)'}", highlight=False
        )
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version")
    ] = False,
) -> None:
    """Every command has --help with examples."""
