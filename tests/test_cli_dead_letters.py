"""`iotsphere dead-letters list` says why messages were refused, on narrow terminals too, and when there are more."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from .support.gateway import SOURCES

TOPIC = "iotsphere/devices/weather-sf-3/telemetry/temperature"
DETAIL = "the payload is no JSON at byte 2, ',' does not fit there: send a plain number such as 21.5, or JSON"
LETTERS = [
    {
        "id": f"01a226a8-12d6-7323-a541-3dd9c3f170e{number}", "reason": "payload_not_json", "topic": TOPIC,
        "source": "weather-sf-3", "received_at": f"2026-11-29T09:34:3{number}.806Z", "detail": DETAIL,
    }
    for number in reversed(range(5))
]  # fmt: skip
PAGE = 2


class Door(BaseHTTPRequestHandler):
    """Answers as the HTTP door does, in pages that may be shorter than what was asked for."""

    def do_GET(self) -> None:
        query = {name: int(values[0]) for name, values in parse_qs(urlsplit(self.path).query).items()}
        start = len(LETTERS) - query.get("before", len(LETTERS))
        end = start + min(query["limit"], PAGE)
        rest = len(LETTERS) - end
        body = json.dumps({"dead_letters": LETTERS[start:end], "before": rest if rest > 0 else None}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Door) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def listed(url: str, *words: str, columns: int | None = None) -> tuple[list[str], str]:
    """Its lines and what it says on standard error. ``columns``: those of a terminal, None for a pipe."""
    ours, theirs = pty.openpty()
    size = {"TERM": "dumb", "COLUMNS": str(columns or 80), "LINES": "40"}
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), **size}
    done = subprocess.run(
        [sys.executable, "-m", "iotsphere", "dead-letters", "list", "--url", url, "--token", "x", *words],
        env=environment, stdout=theirs if columns else subprocess.PIPE, stderr=subprocess.PIPE, check=True,
    )  # fmt: skip
    os.close(theirs)
    text = done.stdout or b""
    with os.fdopen(ours, "rb", buffering=0) as screen, suppress(OSError):  # Linux ends a terminal with EIO
        while read := screen.read(65536):
            text += read
    return text.decode().replace("\r\n", "\n").splitlines(), done.stderr.decode()


def test_a_narrow_terminal_shows_all_of_a_letter(url: str) -> None:
    lines, _ = listed(url, "--limit", "1", columns=80)
    assert [line.rstrip() for line in lines] == [
        "received              id                                    reason",
        "  source  topic",
        "  what was wrong",
        "2026-11-29T09:34:34Z  01a226a8-12d6-7323-a541-3dd9c3f170e4  payload_not_json",
        f"  weather-sf-3  {TOPIC}",
        "  the payload is no JSON at byte 2, ',' does not fit there: send a plain number",
        "  such as 21.5, or JSON",
    ]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("columns", [None, 250])
def test_else_a_letter_is_one_line(url: str, columns: int | None) -> None:
    lines, _ = listed(url, "--limit", "1", columns=columns)
    assert [line.split("  ") for line in lines[1:]] == [
        ["2026-11-29T09:34:34Z", LETTERS[0]["id"], "payload_not_json", "weather-sf-3", TOPIC, DETAIL]
    ]


def test_it_says_that_there_are_more(url: str) -> None:
    lines, said = listed(url, "--limit", "4", "--json")
    assert [json.loads(line)["id"] for line in lines] == [letter["id"] for letter in LETTERS[:4]]
    assert said == "only the newest 4: there are more, and --limit N shows N\n"
    lines, said = listed(url, "--limit", "5", "--json")
    assert ([json.loads(line) for line in lines], said) == (LETTERS, "")
