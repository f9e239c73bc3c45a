"""kill -9 in the midst of appending: whatever was answered is there, in order, once, and without a hole."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.sqlite.log import SqliteLog
from iotsphere.entities.message import Entry
from iotsphere.entities.position import Partition, Position
from tests.contracts.records import read_all, record

from .appending import DOMAIN, PARTITIONS, TASKS

Answered = dict[tuple[Partition, Position], str]
HERE = Path(__file__).parent


def append_until_killed(directory: Path, run: int, lines: int, most: int = 0) -> Answered:
    """Let a child append until so many answers were seen, kill it, and return all that it had printed."""
    with subprocess.Popen(
        [sys.executable, str(HERE / "appending.py"), str(directory), str(run), str(most)],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[2] / "src")},
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        try:
            printed = b"".join(child.stdout.readline() for _ in range(lines))
        finally:
            child.kill()
        printed += child.stdout.read()
    whole, _, _ = printed.rpartition(b"\n")  # the last line may be cut
    answered: Answered = {}
    for line in whole.decode().splitlines():
        number, epoch, offset, message_id = line.split()
        answered[PARTITIONS[int(number)], Position(int(epoch), int(offset))] = message_id
    assert len(answered) >= lines
    return answered


def check_order(entries: list[Entry]) -> None:
    """Offsets are dense, no message is there twice, and each device's messages are in the order of sending."""
    assert [entry.position.offset for entry in entries] == list(range(1, len(entries) + 1))
    newest: dict[str, int] = {}
    for entry in entries:
        device, _, serial = entry.record.message_id.rpartition("-")
        assert int(serial) == newest.get(device, 0) + 1, entry.record.message_id
        newest[device] = int(serial)


@pytest.mark.slow
async def test_everything_that_was_answered_is_there(tmp_path: Path) -> None:
    lines = random.Random(2)
    answered: Answered = {}
    for run in range(6):
        answered |= await asyncio.to_thread(append_until_killed, tmp_path, run, lines.randint(100, 3_000))
    async with SqliteLog(tmp_path, SystemClock()) as log:
        assert log.quarantined is None
        there: Answered = {}
        for partition in log.partitions(DOMAIN, "telemetry"):
            entries = await read_all(log, partition)
            check_order(entries)
            there |= {(partition, entry.position): entry.record.message_id for entry in entries}
        assert answered.items() <= there.items()
        # What a device sends again after the crash, because it saw no answer, is known.
        for (partition, position), message_id in list(answered.items())[::50]:
            again = await log.append([record(partition, message_id)])
            minted = int(message_id.partition("-task")[2][0]) % 4 > 1
            assert (list(again.positions) == [position]) is not minted


@pytest.mark.slow
async def test_a_torn_write_ahead_log_loses_its_end_only(tmp_path: Path) -> None:
    """As a disk that lies about fsync would leave it: what is left is a beginning, whole and in order."""
    # Eighty commits at most, before any of which is copied: a write-ahead log that has started over ends in what is old.
    answered = await asyncio.to_thread(append_until_killed, tmp_path, 0, TASKS * 55, 10)
    tail = tmp_path / "log.db-wal"
    size = tail.stat().st_size
    with tail.open("r+b") as file:
        file.truncate(size * 2 // 3 + 1_234)
        file.seek(size // 2)
        file.write(b"\x55" * 64)
    async with SqliteLog(tmp_path, SystemClock()) as log:
        assert log.quarantined is None
        kept = 0
        for partition in log.partitions(DOMAIN, "telemetry"):
            entries = await read_all(log, partition)
            check_order(entries)
            kept += len(entries)
            for entry in entries:
                told = answered.get((partition, entry.position), entry.record.message_id)
                assert told == entry.record.message_id
        assert 0 < kept < len(answered)
