"""Commands from the terminal: ask a device to do something, follow it to its end, or take it back."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

import typer

from ..entities.errors import RequestInvalid
from ..logs import harmless
from .console import API, AsJson, Data, Token, Url, http_of, object_of, segment

app = typer.Typer(
    no_args_is_help=True,
    help="Send commands to devices and follow them. With --wait the exit code is 0 for a command that succeeded, "
    "3 for one that ended otherwise, and 4 for one that was not over in time.",
)
ENDED_OTHERWISE: Final = 3
NOT_OVER: Final = 4

CommandId = Annotated[str, typer.Argument(help="The command's id, as `send` printed it")]
Wait = Annotated[float, typer.Option(help="Seconds to wait for its end (300 at most); 0: do not wait")]


@app.command("send")
def command_send(
    device: Annotated[str, typer.Argument(help="The device's id")],
    payload: Annotated[str, typer.Argument(help="What the device gets, as a JSON object; - reads it")],
    wait: Wait = 0.0,
    timeout: Annotated[float, typer.Option(help="Seconds that the device has for it; 0: a minute")] = 0.0,
    key: Annotated[
        str | None, typer.Option(help="A text that stands for this command: the same again sends nothing")
    ] = None,
    expires_at: Annotated[str | None, typer.Option(help=r"Not handed over after it \[default: in 24 hours]")] = None,
    data: Data = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Send a command; it waits for a device that is away.

    Examples:  iotsphere command send valve-1 '{"action": "open"}' --wait 10   |   iotsphere command send valve-1 - < body.json
    """
    body = {
        "payload": object_of(payload, "the payload"),
        "wait": wait,
        "timeout": timeout,
        "idempotency_key": key,
        "expires_at": expires_at,
    }
    given = {name: value for name, value in body.items() if value is not None}
    command = http_of(data, url, token)("POST", f"{API}/devices/{segment(device)}/commands", body=given)
    _show(command, as_json)
    _exit(command, waited=wait > 0)


@app.command("show")
def command_show(
    command_id: CommandId,
    wait: Wait = 0.0,
    data: Data = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show a command with each step of its life.  Example:  iotsphere command show 0197f3c2-… --wait 10"""
    query = {"wait": wait or None}
    command = http_of(data, url, token)("GET", f"{API}/commands/{segment(command_id)}", query)
    _show(command, as_json)
    if not as_json:
        for step in command["steps"]:
            print(harmless(f"  {step['at']}  {step['state']}"))
    _exit(command, waited=wait > 0)


@app.command("cancel")
def command_cancel(
    command_id: CommandId, data: Data = None, url: Url = None, token: Token = None, as_json: AsJson = False
) -> None:
    """Take a command back that its device has not been sent.  Example:  iotsphere command cancel 0197f3c2-…"""
    _show(http_of(data, url, token)("POST", f"{API}/commands/{segment(command_id)}/cancel"), as_json)


@app.command("list")
def command_list(
    device: Annotated[str | None, typer.Argument(help="The device's id")] = None,
    after: Annotated[str | None, typer.Option(help="Only those made after this time")] = None,
    limit: int = 100,
    data: Data = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List the commands of a device, oldest first.  Example:  iotsphere command list valve-1 --json"""
    if device is None:
        raise RequestInvalid("commands are listed for one device: name it, as in `iotsphere command list valve-1`")
    query = {"after": after, "limit": limit}
    answer = http_of(data, url, token)("GET", f"{API}/devices/{segment(device)}/commands", query)
    for command in answer["commands"]:
        _show(command, as_json)


def _show(command: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(command))
        return
    told = {name: command[name] for name in ("progress", "result", "reason") if name in command}
    answer = f"  {json.dumps(told, ensure_ascii=False)}" if told else ""
    payload = json.dumps(command["payload"], ensure_ascii=False)
    print(harmless(f"{command['commandId']}  {command['state']:<12}{command['device']}  {payload}{answer}"))


def _exit(command: dict[str, Any], waited: bool) -> None:
    if not waited or command["state"] == "succeeded":
        return
    raise typer.Exit(ENDED_OTHERWISE if command["final"] else NOT_OVER)
