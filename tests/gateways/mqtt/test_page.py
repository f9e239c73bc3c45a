"""docs/reference/mqtt.md promises only what a test holds, and draws the table that the code follows."""

from __future__ import annotations

import re
from pathlib import Path

from iotsphere.adapters.mqtt.life import picture

TESTS = Path(__file__).parents[2]
PAGE = TESTS.parent / "docs/reference/mqtt.md"


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    written = set()
    for path in TESTS.rglob("test_*.py"):
        written |= set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))
    assert len(named) > 60
    assert named - written == set()


def test_every_statement_has_a_test() -> None:
    text = PAGE.read_text()
    tables = re.findall(r"\| statement \| test \|\n\|---\|---\|\n((?:\|.*\n)+)", text)
    assert len(tables) == text.count("| statement |") >= 7
    for row in (row for table in tables for row in table.splitlines()):
        assert "`test_" in row.rsplit("|", 2)[1], row


def test_the_picture_is_the_table_of_the_code() -> None:
    assert f"```mermaid\n{picture()}\n```" in PAGE.read_text()
