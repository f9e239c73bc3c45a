"""An open SQLite log whose clock is turned by hand, and a disk that is soon full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.sqlite.log import SqliteLog
from tests.contracts.records import CHANNELS, DOMAIN


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def log(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteLog]:
    async with SqliteLog(tmp_path, clock) as log:
        await log.ensure(DOMAIN, CHANNELS)
        yield log


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)
