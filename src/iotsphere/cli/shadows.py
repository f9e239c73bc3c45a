"""Shadows from the terminal: what a device is, what it is to be, and what it was."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from ..logs import harmless
from .console import API, AsJson, Data, Token, Url, http_of, object_of, segment

app = typer.Typer(no_args_is_help=True, help="Read, change and delete the shadows of devices.")

Device = Annotated[str, typer.Argument(help="The device's id")]
Name = Annotated[str, typer.Option(help="Which shadow; empty for the main one")]
Version = Annotated[int | None, typer.Option(help="Only if the shadow is still at this version")]


@app.command("get")
def shadow_get(
    device: Device,
    name: Name = "",
    as_of: Annotated[str | None, typer.Option(help="As it was at this time, such as 2026-01-31T12:00:00Z")] = None,
    version: Annotated[int | None, typer.Option(help="As it was at this version")] = None,
    data: Data = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show what is reported, what is desired, and the delta.

    Examples:  iotsphere shadow get sensor-7   |   iotsphere shadow get sensor-7 --as-of 2026-01-31T12:00:00Z --json
    """
    query = {"name": name or None, "as_of": as_of, "version": version}
    found = http_of(data, url, token)("GET", f"{_place(device)}/shadow", query)
    if as_json:
        print(json.dumps(found))
        return
    print(harmless(_title(found)))
    for side in ("reported", "desired", "delta"):
        print(harmless(f"{side:<10}{_text(found[side])}"))
    for pointer, wish in sorted(found.get("wishes", {}).items()):
        reason = f": {wish['reason']}" if "reason" in wish else ""
        print(harmless(f"wish      {pointer} {wish['status']} since {wish['since']}{reason}"))


@app.command("set")
def shadow_set(
    device: Device,
    patch: Annotated[str, typer.Argument(help="What to change, as a JSON object; null takes a key away; - reads it")],
    name: Name = "",
    version: Version = None,
    expires_at: Annotated[
        str | None, typer.Option(help="Until when it is wanted, such as 2026-01-31T12:00:00Z")
    ] = None,
    data: Data = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Change what a device is to be; it is told what differs from what it reports.

    Examples:  iotsphere shadow set sensor-7 '{"interval": 5}'   |   iotsphere shadow set sensor-7 --version 12 - < patch.json
    """
    body = {"desired": object_of(patch, "the patch"), "version": version, "expires_at": expires_at}
    given = {key: value for key, value in body.items() if value is not None}
    decided = http_of(data, url, token)("PATCH", f"{_place(device)}/shadow", {"name": name or None}, given)
    how = "changed" if decided["changed"] else "as desired already"
    print(json.dumps(decided) if as_json else f"{how}, version {decided['version']}")


@app.command("delete")
def shadow_delete(
    device: Device,
    name: Name = "",
    version: Version = None,
    data: Data = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Delete a shadow; its versions go on if it is made anew.  Example:  iotsphere shadow delete sensor-7"""
    query = {"name": name or None, "version": version}
    decided = http_of(data, url, token)("DELETE", f"{_place(device)}/shadow", query)
    print(json.dumps(decided) if as_json else f"deleted, version {decided['version']}")


@app.command("history")
def shadow_history(
    device: Device,
    name: Name = "",
    after: Annotated[int, typer.Option(help="Only versions beyond this one")] = 0,
    limit: int = 100,
    data: Data = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List the versions of a shadow, oldest first.  Example:  iotsphere shadow history sensor-7 --after 12"""
    query = {"name": name or None, "after": after, "limit": limit}
    for found in http_of(data, url, token)("GET", f"{_place(device)}/shadow/versions", query)["shadows"]:
        line = f"{_title(found)}  reported {_text(found['reported'])}  desired {_text(found['desired'])}"
        print(json.dumps(found) if as_json else harmless(line))


def _place(device: str) -> str:
    return f"{API}/devices/{segment(device)}"


def _title(found: dict[str, Any]) -> str:
    name = f"/{found['name']}" if found["name"] else ""
    gone = "  deleted" if found.get("deleted") else ""
    return f"{found['device']}{name}  version {found['version']}  {found['updatedAt']}  {found['author']}{gone}"


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
