"""Messages from the terminal: publish, listen, and prove that none is missing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import typer
from rich.markup import escape
from rich.text import Text

from ..logs import harmless
from .console import API, AsJson, Data, Token, Url, err, gateway_of, http_of, out, run

COLUMNS: Final = ("accepted", "applied", "superseded", "expired", "dead_lettered", "lost", "pending", "imbalance")


def publish(
    topic: str,
    payload: Annotated[str, typer.Argument(help="JSON, or a plain number")],
    data: Data = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Publish one message and wait until it is durable.  Example:  iotsphere publish iotsphere/system/status '{"ok":true}'"""
    from .. import connect

    async def work() -> Any:
        place, credential = gateway_of(data, url, token, "websocket")
        async with connect(place, token=credential) as broker:
            return await broker.publish(topic, payload.encode())

    receipt = run(work())
    shown = {"message_id": receipt.message_id, "position": receipt.position, "duplicate": receipt.duplicate}
    print(json.dumps(shown) if as_json else f"{receipt.message_id} at {receipt.position}")


def tail(
    filters: Annotated[list[str], typer.Argument(help="Filters such as 'iotsphere/devices/+/telemetry/#'")],
    start: Annotated[str, typer.Option("--from", help="earliest, latest, live, a cursor or a time")] = "live",
    count: Annotated[int, typer.Option(help="Stop after so many messages; 0 = never")] = 0,
    data: Data = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Print messages as they come, one envelope a line with --json.

    Example:  iotsphere tail 'iotsphere/devices/+/telemetry/#' --from earliest --count 10 --json
    """
    place, credential = gateway_of(data, url, token, "websocket")
    try:
        run(_tail(place, credential, filters, start, count, as_json))
    except (KeyboardInterrupt, BrokenPipeError):
        sys.stderr.close()


async def _tail(url: str, token: str, filters: list[str], start: str, count: int, as_json: bool) -> None:
    from .. import connect
    from ..adapters.envelope import encode

    seen = 0
    async with connect(url, token=token) as broker:
        subscription = broker.subscribe(*filters, from_=start, on_gap=_tell_gap)
        async for message in subscription:
            if as_json:
                print(encode(message).decode(), flush=True)
            else:
                about = message.metadata
                print(harmless(f"{about.timestamp}  {about.topic}  {message.payload.decode()}"), flush=True)
            seen += 1
            if count and seen >= count:
                return


def _tell_gap(gap: object) -> None:
    err.print(f"[yellow]missed[/]: {escape(str(gap))}")


def ledger(data: Data = None, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Show for each reader that accepted = applied + superseded + expired + dead-lettered + lost + pending."""
    answer = http_of(data, url, token)("GET", f"{API}/ledger")
    if as_json:
        print(json.dumps(answer))
        return
    rows = [row for row in answer["readers"] if row["accepted"]]
    if not rows:
        out.print("nothing was accepted yet", style="dim")
        return
    for line in _accounts(rows, out.width):
        out.print(line, soft_wrap=True, highlight=False)
    quiet = len(answer["readers"]) - len(rows)
    if quiet:
        out.print(f"{quiet} more with nothing to read", style="dim")


def _accounts(rows: Sequence[Mapping[str, Any]], width: int) -> Iterator[Text]:
    """The rows of the ledger as lines, all columns with zeros quiet; where it is narrow, each name above its figures."""
    heads = [name.replace("_", "-") for name in COLUMNS]
    widths = [max(len(head), *(len(str(row[name])) for row in rows)) for head, name in zip(heads, COLUMNS, strict=True)]
    names = [f"{row['reader']} / {row['channel']}" for row in rows]
    title = "reader / channel"
    room = max(map(len, [title, *names]))
    is_wide = room + sum(widths) + 2 * len(widths) <= width
    beginning = title.ljust(room + 2) if is_wide else f"{title}\n"
    yield Text(beginning + "  ".join(map(str.rjust, heads, widths)), style="bold")
    for name, row in zip(names, rows, strict=True):
        line = Text(name.ljust(room + 2) if is_wide else f"{name}\n")
        for index, (column, length) in enumerate(zip(COLUMNS, widths, strict=True)):
            line.append(("  " if index else "") + str(row[column]).rjust(length), "" if row[column] else "dim")
        yield line


def trace(message_id: str, data: Data = None, url: Url = None, token: Token = None) -> None:
    """Tell where a message went.  Example:  iotsphere trace 0197f3c2-…"""
    print(json.dumps(http_of(data, url, token)("GET", f"{API}/messages/{message_id}/trace"), indent=2))
