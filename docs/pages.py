"""Write the reference pages that follow from the code: settings and errors. `--check` only tells whether they are current."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from iotsphere.entities import errors
from iotsphere.settings import Settings

REFERENCE: Final = Path(__file__).parent / "reference"
NOTE: Final = "<!-- Written by docs/pages.py from the code: change the code, then run `make docs`. -->"

SETTINGS_HEAD: Final = """\
# Settings

{note}

Each setting is an environment variable. Where `iotsphere` has an option of the same name, the option wins. A value
that does not fit ends the start with a message that names the variable; nothing is guessed.

A setting can also be a file in `/run/secrets` with the variable's name in lower case, such as `iotsphere_log` for an
address that holds a password. Lists are written as JSON: `IOTSPHERE_DOMAINS='["iotsphere","plant-2"]'`.

| variable | default | values | meaning |
|---|---|---|---|
"""

ERRORS_HEAD: Final = """\
# Error codes

{note}

Every refusal and failure has a code, on every door. Codes are stable: a program may branch on them. The message beside
a code is for people, says what to do, and may change. `retry` tells whether the same request can succeed later; where
it says no, change something first.

Over MQTT the code becomes a reason code ([mqtt.md](mqtt.md)), over WebSocket an `error` answer, over HTTP the
`code` in the body of the answer. A message that was refused at the edge carries its dead-letter reason as its code
([dead-letters.md](dead-letters.md)).

| code | retry | meaning | kind |
|---|---|---|---|
"""


def cell(text: str) -> str:
    """Text as it may stand in a table cell."""
    return text.replace("|", "\\|").replace("\n", " ")


def values_of(field: FieldInfo) -> str:
    """The values that a setting takes, for a reader who knows no Python."""
    text = str(field.annotation) if not isinstance(field.annotation, type) else field.annotation.__name__
    text = re.sub(r"typing\.Annotated\[([\w.]+), .*](?=, \.\.\.)", r"\1", text)  # an item's limits are no words
    if literal := re.search(r"Literal\[(.*?)]", text):
        return ", ".join(f"`{value}`" for value in re.findall(r"'([^']*)'", literal[1]))
    words = {
        "bool": "`true` or `false`", "int": "whole number", "float": "number", "Path": "path", "str": "text",
        "tuple[str, ...]": "list of texts", "tuple[pathlib.Path, ...]": "list of paths",
        "tuple[pathlib._local.Path, ...]": "list of paths", "pathlib.Path | None": "path", "pathlib._local.Path | None": "path",
    }  # fmt: skip
    limits = [f"{sign} {bound}" for sign, name in ((">", "gt"), ("≥", "ge"), ("<", "lt"), ("≤", "le"))
              if (bound := next((getattr(m, name) for m in field.metadata if hasattr(m, name)), None)) is not None]  # fmt: skip
    return " ".join([words.get(text, text.removesuffix(" | None")), ", ".join(limits)]).strip()


def default_of(field: FieldInfo) -> str:
    """A setting's default as it would be written in the environment."""
    value = field.default
    if value is PydanticUndefined:
        return "required" if field.default_factory is None else "made at start"
    if isinstance(value, tuple):
        return "`[" + ",".join(f'"{item}"' for item in value) + "]`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "" if value is None else f"`{value}`"


def settings_page() -> str:
    """The page of all settings, in the order of the class."""
    prefix = Settings.model_config.get("env_prefix", "")
    rows = [
        f"| `{prefix}{name.upper()}` | {default_of(field)} | {values_of(field)} | {cell(field.description or '')} |"
        for name, field in Settings.model_fields.items()
    ]
    return SETTINGS_HEAD.format(note=NOTE) + "\n".join(rows) + "\n"


def tree(kind: type[errors.IotSphereError], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The error classes below ``kind``: code, retry, meaning, path; parents first, in the order of their definition."""
    path = (*path, kind.__name__)
    meaning = (inspect.getdoc(kind) or "").replace("``", "`").partition("\n\n")[0].replace("\n", " ")
    yield kind.code, "yes" if kind.retry else "no", meaning, " › ".join(path[1:])
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child, path)


def errors_page() -> str:
    """The page of all error codes."""
    rows = [
        f"| `{code}` | {retry} | {cell(meaning)} | {kind} |"
        for code, retry, meaning, kind in tree(errors.IotSphereError)
        if kind
    ]
    last = "| `internal` | no | A fault of the gateway itself; its log says more. Please report it. | |"
    return ERRORS_HEAD.format(note=NOTE) + "\n".join([*rows, last]) + "\n"


PAGES: Final = {"settings.md": settings_page, "errors.md": errors_page}


def main(arguments: list[str]) -> int:
    """Write the pages, or with ``--check`` name those that are not current. Returns the exit code."""
    stale = []
    for name, make in PAGES.items():
        page = REFERENCE / name
        text = make()
        if page.exists() and page.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            page.write_text(text, encoding="utf-8")
            print(f"docs/reference/{name} written")
    if stale and "--check" in arguments:
        print(f"not current: {', '.join(stale)}; run `make docs`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
