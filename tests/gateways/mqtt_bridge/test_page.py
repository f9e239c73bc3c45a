"""docs/reference/bridge.md promises only what a test holds, and the how-to shows files that are right."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path, PurePath

import pytest

from iotsphere.adapters.bridge.file import parse_bridge
from iotsphere.gateways.mqtt_bridge import BridgeOptions

TESTS = Path(__file__).parents[2]
DOCS = TESTS.parent / "docs"
PAGE = (DOCS / "reference/bridge.md").read_text()
GUIDE = (DOCS / "how-to/bridge-a-broker.md").read_text()
# What no test can hold: it is the broker's doing.
UNHELD = ("A packet above 8 MiB",)


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    written = set()
    for path in TESTS.rglob("test_*.py"):
        written |= set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))
    assert len(named) > 30
    assert named - written == set()


def test_every_statement_has_a_test() -> None:
    tables = re.findall(r"\| statement \| test \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE)
    assert len(tables) == 4
    for row in (row for table in tables for row in table.splitlines()):
        assert "`test_" in row.rsplit("|", 2)[1] or row.removeprefix("| ").startswith(UNHELD), row


@pytest.mark.parametrize("text", re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL))
def test_files_of_the_guide_are_right(text: str) -> None:
    spec = parse_bridge(text, PurePath("bridge.toml"), ("iotsphere",))
    assert spec.inward
    assert spec.outward


def test_every_alert_of_the_code_is_explained() -> None:
    raised = set()
    for path in (TESTS.parent / "gateways/mqtt_bridge").glob("*.py"):
        raised |= set(re.findall(r'raise_alert\(\s*"(\w+)"', path.read_text()))
    assert raised == set(re.findall(r"^\| `(\w+)` \|", GUIDE, re.MULTILINE))


def test_figures_of_the_pages_are_those_of_the_code() -> None:
    default = {field.name: field.default for field in fields(BridgeOptions)}
    assert (default["first_retry"], default["last_retry"], default["overdue"]) == (0.5, 30.0, 30.0)
    assert (default["held_bytes"], default["loose_bytes"]) == (32 << 20, 8 << 20)
    assert (default["takeovers"], default["takeovers_within"], default["per_device"]) == (3, 60.0, 100)
