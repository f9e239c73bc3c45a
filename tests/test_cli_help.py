"""Every command explains itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.text import Text
from typer.testing import CliRunner

from iotsphere.cli import app

from .support.gateway import SOURCES

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


@pytest.mark.parametrize("command", COMMANDS)
def test_no_word_of_a_help_page_is_taken_for_markup(command: str) -> None:
    """`[default: …]` looks like markup, and went unseen."""
    found = typer.main.get_command(app)
    for word in command.split():
        found = found.commands[word]  # type: ignore[attr-defined]  # a group
    helps = [found.help or "", *(getattr(one, "help", None) or "" for one in found.params)]
    assert [Text.from_markup(text).plain for text in helps] == [text.replace("\\[", "[") for text in helps]


def test_paragraphs_are_broken_where_the_terminal_is_wide() -> None:
    told = CliRunner().invoke(app, ["spark", "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).stdout
    assert " time and ends. Ctrl-C stops between two batches, and a run without a" in told


def test_errors_colour_no_digits_of_an_id(tmp_path: Path) -> None:
    folder = tmp_path / "sensor-7"
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "FORCE_COLOR": "1", "TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    done = subprocess.run(
        [sys.executable, "-m", "iotsphere", "device", "rotate", "x", "--data", str(folder)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr.startswith("\x1b[31mrequest_invalid\x1b[0m: there is no gateway's data in " + f"{folder}: name")
