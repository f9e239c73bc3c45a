"""Log lines: text where a person looks, JSON where a program reads, and nothing that a terminal would obey."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress

import pytest

from iotsphere.logs import WENT_ON_TOLD

from .support.gateway import ROOT

AFTER_A_CRASH = ["facts_folded_again", "facts_folded_again", "presence_recovered"]

SAY = """
import logging, sys, structlog
from iotsphere import logs
logs.configure("info", sys.argv[1])
log = structlog.get_logger("iotsphere.mqtt")
log.debug("too_quiet")
log.info("facts_folded_again", reader="iotsphere/shadows", partition="iotsphere/shadow/1", count=6)
log.info("facts_folded_again", reader="iotsphere/shadows", partition="iotsphere/shadow/2", count=1)
log.info("presence_recovered", devices=3)
log.info("connect_refused", address="127.0.0.1", code="\\x1b[2Jgone")
logging.getLogger("iotsphere.sqlite").warning("%s is full\\nand \\x07rings", "disk")
try:
    raise ValueError("\\x1b[31mred")
except ValueError:
    log.exception("task_failed")
"""


def said(form: str, *, terminal: bool) -> list[str]:
    """What a process writes to standard error, as lines."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}
    stderr = theirs if terminal else subprocess.PIPE
    told = subprocess.run([sys.executable, "-c", SAY, form], stderr=stderr, env=environment, check=True, timeout=300)
    os.close(theirs)
    text = told.stderr or b""
    with os.fdopen(ours, "rb", buffering=0) as screen, suppress(OSError):  # Linux ends a terminal with EIO
        while read := screen.read(65536):
            text += read
    return str(text, "utf-8").replace("\r\n", "\n").splitlines()


@pytest.mark.parametrize(("form", "terminal"), [("auto", True), ("text", False)])
def test_a_person_reads_text(form: str, terminal: bool) -> None:
    lines = said(form, terminal=terminal)
    start = next(number for number, line in enumerate(lines) if "connect_refused" in line)
    refused, full, failed, *trace = lines[start:]
    assert refused.split() == [
        refused[:8], "[info", "]", "connect_refused", "[iotsphere.mqtt]", "address=127.0.0.1", "code=\\x1b[2Jgone",
    ]  # fmt: skip
    assert "disk is full\\nand \\x07rings" in full
    assert "task_failed" in failed
    assert trace[0] == "Traceback (most recent call last):"
    assert trace[-1] == "ValueError: \\x1b[31mred"


def test_a_person_is_told_in_one_sentence_that_it_went_on_after_a_crash() -> None:
    assert said("auto", terminal=True)[0] == WENT_ON_TOLD
    assert "connect_refused" in said("auto", terminal=True)[1]
    assert [line.split()[3] for line in said("text", terminal=True)[:3]] == AFTER_A_CRASH


@pytest.mark.parametrize(("form", "terminal"), [("auto", False), ("json", True)])
def test_a_program_reads_json(form: str, terminal: bool) -> None:
    *went_on, refused, full, failed = map(json.loads, said(form, terminal=terminal))
    assert [line["event"] for line in went_on] == AFTER_A_CRASH
    assert refused["event"] == "connect_refused"
    assert (refused["level"], refused["logger"], refused["code"]) == ("info", "iotsphere.mqtt", "\x1b[2Jgone")
    assert full["event"] == "disk is full\nand \x07rings"
    assert failed["exception"].endswith("ValueError: \x1b[31mred")
