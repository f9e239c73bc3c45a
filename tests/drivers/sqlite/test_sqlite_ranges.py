"""Ranges of a SQLite log keep the contract, while another process writes it and while none does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.sqlite.log import SqliteLog
from iotsphere.drivers.sqlite.ranges import SqliteRanges
from iotsphere.entities.errors import LogUnavailable
from iotsphere.entities.position import Partition
from iotsphere.use_cases.ports.log_ranges import LogRanges
from iotsphere.use_cases.ports.message_log import MessageLog
from tests.contracts.log_ranges import LogRangesContract, taken
from tests.contracts.records import BEGINNING, CHANNELS, DOMAIN, P0, P1, records

from .test_log import damage


class TestSqliteRanges(LogRangesContract):
    @pytest.fixture
    async def log(self, clock: ManualClock, tmp_path: Path) -> AsyncIterator[MessageLog]:
        async with SqliteLog(tmp_path, clock) as log:
            yield log

    @pytest.fixture
    def ranges(self, log: SqliteLog) -> Iterator[LogRanges]:
        with SqliteRanges(log.file.path.parent) as ranges:
            yield ranges

    async def damage(self, log: MessageLog, partition: Partition, offset: int) -> None:
        assert isinstance(log, SqliteLog)
        damage(log.file.path, partition, offset)


def test_a_folder_without_a_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogUnavailable) as caught:
        SqliteRanges(tmp_path).__enter__()
    assert caught.value.message == (
        f"there is no log at {tmp_path / 'log.db'}: start its gateway first, or name its data folder DIR, in Python as "
        "log='sqlite:DIR', on the command line with --data DIR or IOTSPHERE_DATA"
    )


async def test_a_log_that_nobody_writes_is_read(tmp_path: Path, clock: ManualClock) -> None:
    async with SqliteLog(tmp_path, clock) as log:
        await log.ensure(DOMAIN, CHANNELS)
        positions = (await log.append(records(5))).positions
    with SqliteRanges(tmp_path) as ranges:
        assert len(taken(ranges, BEGINNING, positions[-1])[0]) == 5
    with pytest.raises(LogUnavailable, match="not open"):
        ranges.bounds(P0)


def test_another_process_writes_while_ranges_are_read(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.drivers.sqlite.appending", str(tmp_path), "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]) as writer:
        assert writer.stdout is not None
        told: dict[int, list[str]] = {0: [], 1: []}

        def hear(count: int) -> None:
            for _ in range(count):
                number, _, _, message_id = writer.stdout.readline().split()  # type: ignore[union-attr]  # it is a pipe
                told[int(number)].append(message_id)

        try:
            hear(50)
            with SqliteRanges(tmp_path) as ranges:
                places = {P0: BEGINNING, P1: BEGINNING}
                seen: dict[int, list[str]] = {0: [], 1: []}
                for _ in range(10):
                    hear(200)
                    for partition, place in places.items():
                        upto = ranges.bounds(partition).last
                        entries, gaps = taken(ranges, place, upto, partition)
                        assert gaps == []
                        seen[partition.number] += [entry.record.message_id for entry in entries]
                        places[partition] = upto
        finally:
            writer.kill()
    for number, ids in told.items():
        assert len(seen[number]) == places[Partition(DOMAIN, "telemetry", number)].offset
        assert set(ids) <= set(seen[number])
