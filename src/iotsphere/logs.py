"""Log lines on standard error: readable on a terminal, one JSON object a line elsewhere; control characters are escaped."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping
from typing import Any, Final, Literal

import structlog

Format = Literal["auto", "text", "json"]
EVENT_WIDTH: Final = 28
# What several parts tell, each of itself, after a run that was cut short or with a database from a copy.
WENT_ON: Final = frozenset(("facts_folded_again", "presence_recovered"))
WENT_ON_TOLD: Final = "Went on after a crash or from a copy: what was unsaved is read from the log."


def configure(level: str, form: Format = "auto") -> None:
    """Send structlog's and the standard library's records the same way. ``auto``: text where a person looks, else JSON.

    That person is told in a sentence that the gateway went on after a crash; `text` and `json` keep its lines.
    """
    is_watched = form == "auto" and sys.stderr.isatty()
    is_text = form == "text" or is_watched
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if is_text else "iso", utc=not is_text),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *((_Sentence(),) if is_watched else ()),
            *shared,
            structlog.processors.format_exc_info,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.processors.format_exc_info],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *(_text() if is_text else _json())],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("websockets", "uvicorn", "uvicorn.error", "uvicorn.access", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))


class _Sentence:
    """Says the lines of `WENT_ON` once, as one sentence."""

    def __init__(self) -> None:
        self._is_said = False

    def __call__(self, _: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if event["event"] not in WENT_ON:
            return event
        if not self._is_said:
            self._is_said = True
            print(WENT_ON_TOLD, file=sys.stderr, flush=True)
        raise structlog.DropEvent


def _json() -> list[structlog.typing.Processor]:
    return [structlog.processors.JSONRenderer()]


def _text() -> list[structlog.typing.Processor]:
    colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    renderer = structlog.dev.ConsoleRenderer(
        pad_event_to=EVENT_WIDTH, colors=colours, exception_formatter=structlog.dev.plain_traceback
    )
    return [_harmless, renderer]


def harmless(text: str) -> str:
    """The text with all that a terminal would obey escaped; for whatever a device or a client has chosen."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _harmless(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Clients choose some of what is told. The lines of a traceback stay lines."""
    for name, value in event.items():
        if isinstance(value, str):
            lines = value.split("\n") if name == "exception" else [value]
            event[name] = "\n".join(map(harmless, lines))
    return event
