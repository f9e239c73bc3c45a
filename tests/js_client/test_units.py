"""Tests in JavaScript, of what needs a made-up socket and time that stands still."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.servers import binary

UNITS = sorted(Path(__file__).with_name("units").glob("*.test.mjs"))


@pytest.mark.parametrize("unit", UNITS, ids=[unit.name for unit in UNITS])
def test_unit(unit: Path) -> None:
    result = subprocess.run(
        (binary("node"), "--test", "--no-warnings", str(unit)), capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == 0, result.stdout + result.stderr
