"""What to type next after an error: the commands that lead on, for the command that failed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

LIST_DEVICES: Final = "see which devices there are", "iotsphere device list"
# (code of the error, beginning of the command) -> why one would type it, what to type. The longest beginning counts.
NEXT: Final[dict[tuple[str, str], tuple[str, str]]] = {
    ("not_found", "device"): LIST_DEVICES,
    ("not_found", "shadow"): LIST_DEVICES,
    ("not_found", "command"): LIST_DEVICES,
    ("request_invalid", "command list"): LIST_DEVICES,
    ("not_found", "command show"): ("see a device's commands with their ids", "iotsphere command list DEVICE"),
    ("not_found", "command cancel"): ("see a device's commands with their ids", "iotsphere command list DEVICE"),
    ("not_found", "dead-letters"): ("see the letters with their ids", "iotsphere dead-letters list"),
    ("not_found", "trace"): (
        "see messages with their ids",
        "iotsphere tail 'iotsphere/devices/#' --from earliest --count 10 --json",
    ),
    ("forbidden", "tail"): ("make a token that may listen", "iotsphere token user:NAME --grant 'subscribe:FILTER'"),
    ("forbidden", "publish"): ("make a token that may publish", "iotsphere token user:NAME --grant 'publish:FILTER'"),
    ("forbidden", "command send"): (
        "make a token that may command",
        "iotsphere token user:NAME --grant 'command:iotsphere/devices/DEVICE/#'",
    ),
    ("unauthenticated", ""): (
        "leave --token and IOTSPHERE_TOKEN away where the gateway's data folder is, or make a token",
        "iotsphere token user:NAME --grant 'subscribe:FILTER'",
    ),
}


def remedy(code: str, words: Sequence[str]) -> tuple[str, str] | None:
    """Why, and the command to type, after an error with this code of the command line ``words``; None: there is none."""
    said = [word for word in words if not word.startswith("-")]
    for beginning in (" ".join(said[:2]), said[0] if said else "", ""):
        if (code, beginning) in NEXT:
            why, command = NEXT[code, beginning]
            return why, command + _folder(words)
    return None


def _folder(words: Sequence[str]) -> str:
    """The option that names the data folder, where the failed command had it."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "--data" and following:
            return f" --data {shlex.quote(following)}"
        if word.startswith("--data="):
            return f" --data {shlex.quote(word.removeprefix('--data='))}"
    return ""
