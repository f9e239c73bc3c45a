"""After an error the command line says what to type next."""

from __future__ import annotations

import shlex

import pytest

from iotsphere.cli.remedies import NEXT, remedy

from .test_cli_help import COMMANDS


@pytest.mark.parametrize(
    ("code", "line", "command"),
    [
        ("not_found", "device rotate x", "iotsphere device list"),
        ("not_found", "device rotate x --data '/a b'", "iotsphere device list --data '/a b'"),
        ("not_found", "--data=/d shadow get x", "iotsphere device list --data /d"),
        ("not_found", "command show 0197", "iotsphere command list DEVICE"),
        ("not_found", "command send x {}", "iotsphere device list"),
        ("request_invalid", "command list", "iotsphere device list"),
        ("forbidden", "tail iotsphere/#", "iotsphere token user:NAME --grant 'subscribe:FILTER'"),
        ("unauthenticated", "publish a 1", "iotsphere token user:NAME --grant 'subscribe:FILTER'"),
        ("not_found", "ledger", None),
        ("log_full", "publish a 1", None),
        ("not_found", "", None),
    ],
)
def test_the_command_that_leads_on_is_named(code: str, line: str, command: str | None) -> None:
    found = remedy(code, shlex.split(line))
    assert (found and found[1]) == command


def test_each_remedy_is_a_command_that_there_is() -> None:
    for _, command in NEXT.values():
        words = shlex.split(command)
        assert words[0] == "iotsphere"
        assert any(" ".join(words[1:3]).startswith(known) for known in COMMANDS), command
