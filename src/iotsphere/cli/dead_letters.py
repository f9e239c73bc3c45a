"""Dead letters from the terminal: list, look, send again, or drop."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Final

import typer
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from ..drivers.http_client import HttpClient
from ..logs import harmless
from .console import API, AsJson, Data, Token, Url, err, http_of, out

app = typer.Typer(no_args_is_help=True, help="See why messages were refused; send them again or drop them.")
HEADS: Final = ("received", "id", "reason", "source", "topic", "what was wrong")
PAGE: Final = 1_000
FIELDS: Final = ("received_at", "id", "reason", "source", "topic", "detail")


@app.command("list")
def letters_list(
    reason: Annotated[str | None, typer.Option(help="Only this reason")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most; it is said when there are more")] = 50,
    data: Data = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List refused messages, newest first."""
    letters = list(islice(_newest(http_of(data, url, token), reason, limit + 1), limit + 1))
    shown = letters[:limit]
    if as_json:
        for item in shown:
            print(json.dumps(item))
    elif not shown:
        out.print("nothing was refused", style="dim")
    else:
        for line in _lines(shown, out.width if out.is_terminal else None):
            out.print(line, highlight=False, soft_wrap=not out.is_terminal)
    if len(letters) > limit:  # on standard error, so that whoever counts lines counts letters
        err.print(f"only the newest {limit:,}: there are more, and --limit N shows N", style="dim")


def _newest(ask: HttpClient, reason: str | None, wanted: int) -> Iterator[dict[str, Any]]:
    """Letters, newest first, page by page: a page may be short where many were looked at."""
    before = None
    while True:
        query = {"reason": reason, "limit": min(wanted, PAGE), "before": before}
        answer = ask("GET", f"{API}/dead-letters", query)
        yield from answer["dead_letters"]
        before = answer["before"]
        if before is None:
            return


def _lines(letters: Sequence[Mapping[str, str]], width: int | None) -> Iterator[RenderableType]:
    """Heads and a line for each letter; where that is too wide, each with its topic and what was wrong below it."""
    rows = [HEADS, *([harmless(item[name]) for name in FIELDS] for item in map(_shortened, letters))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    if width is None or max(map(len, lines)) <= width:
        yield from (Text(line, "" if index else "bold") for index, line in enumerate(lines))
        return
    for index, row in enumerate(rows):
        style = "" if index else "bold"
        yield Text("  ".join(map(str.ljust, row[:3], widths)).rstrip(), style)
        yield Padding(Text(f"{row[3]}  {row[4]}\n{row[5]}", style), (0, 0, 0, 2))


def _shortened(letter: Mapping[str, str]) -> dict[str, str]:
    return {**letter, "received_at": f"{letter['received_at'][:19]}Z"}


@app.command("show")
def letters_show(letter_id: str, data: Data = None, url: Url = None, token: Token = None) -> None:
    """Show one refused message with its reason and first bytes (``raw``: base64; ``text``: the same, where it is text)."""
    letter = http_of(data, url, token)("GET", f"{API}/dead-letters/{letter_id}")
    text = base64.b64decode(letter["raw"] or "").decode("utf-8", "backslashreplace")
    print(json.dumps({**letter, "text": text}, indent=2))


@app.command("redrive")
def letters_redrive(letter_id: str, data: Data = None, url: Url = None, token: Token = None) -> None:
    """Publish a refused message again, through the same checks."""
    print(json.dumps(http_of(data, url, token)("POST", f"{API}/dead-letters/{letter_id}/redrive")))


@app.command("discard")
def letters_discard(letter_id: str, data: Data = None, url: Url = None, token: Token = None) -> None:
    """Mark a refused message as dealt with."""
    http_of(data, url, token)("DELETE", f"{API}/dead-letters/{letter_id}")
    print(f"discarded {letter_id}")
