"""Dead letters from the terminal: list, look, send again, or drop."""

from __future__ import annotations

import base64
import json
from typing import Annotated

import typer

from ..logs import harmless
from .console import API, AsJson, Data, Token, Url, http_of

app = typer.Typer(no_args_is_help=True, help="See why messages were refused; send them again or drop them.")


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
    for item in answer["dead_letters"]:
        line = f"{item['id']}  {item['reason']:<22}{item['topic']}  {item['detail']}"
        print(json.dumps(item) if as_json else harmless(line))


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
