"""Every command explains itself."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from iotsphere.cli import app

COMMANDS = (
    "up", "run", "token", "publish", "tail", "ledger", "trace", "device add", "device list", "device remove",
    "dead-letters list", "dead-letters show", "dead-letters redrive", "dead-letters discard",
    "shadow get", "shadow set", "shadow delete", "shadow history",
    "command send", "command show", "command cancel", "command list", "spark", "console",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    told = CliRunner().invoke(app, [*command.split(), "--help"])
    assert told.exit_code == 0
    assert "Usage:" in told.stdout
