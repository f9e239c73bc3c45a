"""Dead letters from the terminal: list, look, send again, or drop."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final

import typer
from rich.text import Text

from ..logs import harmless
from .console import API, AsJson, Data, Token, Url, http_of, out

app = typer.Typer(no_args_is_help=True, help="See why messages were refused; send them again or drop them.")
HEADS: Final = ("received", "id", "reason", "source", "topic", "what was wrong")
FIELDS: Final = ("received_at", "id", "reason", "source", "topic", "detail")


@app.command("list")
def letters_list(
    reason: Annotated[str | None, typer.Option(help="Only this reason")] = None,
    limit: int = 50,
    data: Data = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List refused messages, newest first."""
    answer = http_of(data, url, token)("GET", f"{API}/dead-letters", {"reason": reason, "limit": limit})
    letters = answer["dead_letters"]
    if as_json:
        for item in letters:
            print(json.dumps(item))
    elif not letters:
        out.print("nothing was refused", style="dim")
    else:
        for line in _lines(letters):
            if out.is_terminal:
                line.truncate(out.width, overflow="ellipsis")
            out.print(line, highlight=False, soft_wrap=True)


def _lines(letters: Sequence[Mapping[str, str]]) -> Iterator[Text]:
    """A line of heads and one for each letter; what may be cut off stands last."""
    whole = [{**item, "received_at": f"{item['received_at'][:19]}Z"} for item in letters]
    rows = [HEADS, *([harmless(item[name]) for name in FIELDS] for item in whole)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for index, row in enumerate(rows):
        yield Text("  ".join(map(str.ljust, row, widths)).rstrip(), "" if index else "bold")


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
