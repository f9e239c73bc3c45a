"""Reading by columns and by splits is reading one by one: the same rows, refusals and losses, whatever lies in the log."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import pyarrow as pa
import pytest
import redis
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from iotsphere.adapters.record import LAYOUT, pack
from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.redis.keys import Keys
from iotsphere.drivers.redis.options import DEFAULTS
from iotsphere.drivers.spark.columns import FORMATS, Format
from iotsphere.drivers.spark.jobs import Run, lake
from iotsphere.drivers.spark.places import offsets
from iotsphere.drivers.spark.runner import Plan, Runner
from iotsphere.drivers.spark.source import LogReader
from iotsphere.drivers.spark.splits import Losses, Split, read_split
from iotsphere.drivers.spark.unread import reading
from iotsphere.drivers.sqlite.file import FILE_NAME
from iotsphere.drivers.sqlite.log import SqliteLog
from iotsphere.entities.channel import Retention
from iotsphere.entities.errors import MessagesMissed
from iotsphere.entities.message import Record
from iotsphere.entities.position import Gap, Partition, Position
from iotsphere.spark import IotSphereSource, open_ranges
from tests.support.servers import Server
from tests.support.telemetry import fill_redis, fill_sqlite

P0 = Partition("iotsphere", "telemetry", 0)
pytestmark = pytest.mark.timeout(600)
NOW = 1_767_225_600_000
TOPIC = "iotsphere/devices/d1/telemetry"
ENVELOPE = b'{"metadata":{"messageId":"%036d","timestamp":"2026-01-01T00:00:00.000Z","source":"d1"},"payload":%b}'
BY_HAND: Format = replace(FORMATS["readings"], decode=None)
Rewrite = Callable[[dict[int, bytes]], None]


class Found(NamedTuple):
    """What a way of reading gave: rows, and the gaps that it noted."""

    rows: list[dict[str, Any]]
    gaps: list[tuple[str, int, int, str]]


def body(payload: bytes) -> bytes:
    return ENVELOPE % (1, payload)


def stored(payload: bytes, topic: str = TOPIC, at: int = NOW) -> bytes:
    return pack(Record(P0, topic, f"{1:036d}", payload, at), NOW)


def forged(record: bytes, **changes: int) -> bytes:
    """The record with other numbers in its head, and the checksum that fits them."""
    layout = struct.Struct("<IBBqqqHH")
    head = dict(zip([name for name, _ in LAYOUT], layout.unpack(record[: layout.size]), strict=True)) | changes
    rest = layout.pack(*head.values())[4:] + record[layout.size :]
    return struct.pack("<I", crc32(rest)) + rest


SOUND = stored(body(b'{"value":7}'))
UNREADABLE = [
    SOUND[:-1] + b"?",  # damaged
    SOUND[:10],  # cut
    b"",
    forged(SOUND, format=2),  # of a version that nobody knows
    forged(SOUND, id_length=60_000),
    forged(SOUND, topic_length=40_000, id_length=40_000),
    forged(stored(b"", "iotsphere/devices/d1/telemetry/\u00e9"), topic_length=len("iotsphere/devices/d1/telemetry/") + 1),
]  # fmt: skip
POISON = [
    stored(body(b"[" * 2_000 + b"]" * 2_000)),
    stored(body(b"NaN")), stored(body(b'"\xff"')), stored(body(b"1e999")), stored(body(b"")), stored(b"\0" * 300),
    stored(body(b"[1")), stored(body(b"2],3,4")), stored(body(b'"a')), stored(body(b'b",3,4,5')),
    stored(body(b'{"samples":[{"ts":1e300,"v":1},{"ts":"2026-01-01T00:00:00Z","v":null},3]}')),
    stored(body(b"1"), topic="x"), stored(body(b"1"), topic="iotsphere/devices/d\u00e9/telemetry/t"),
    forged(SOUND, appended_at=2**63 - 1), forged(SOUND, appended_at=-(2**63)), forged(SOUND, timestamp=2**63 - 1),
    forged(SOUND, timestamp=-(2**63), appended_at=2**62), forged(SOUND, flags=255), forged(SOUND, id_length=0),
    stored(body(b'{"value":7,"ts":1}').replace(b'"source"', b'"receivedAt":"x","source"'), at=-(2**63)),
]  # fmt: skip


def in_redis(port: int) -> Rewrite:
    def rewrite(wanted: dict[int, bytes]) -> None:
        with redis.Redis(port=port) as client:
            key = Keys(DEFAULTS.prefix).partition(P0).log
            entries = client.xrange(key)
            client.delete(key)
            for stored_id, fields in entries:
                offset = int(stored_id.partition(b"-")[2])
                client.xadd(key, {b"r": wanted.get(offset, fields[b"r"])}, id=stored_id)

    return rewrite


def in_sqlite(path: Path) -> Rewrite:
    def rewrite(wanted: dict[int, bytes]) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            (number,) = connection.execute(
                "SELECT id FROM partitions WHERE domain = ? AND channel = ? AND number = ?", P0
            ).fetchone()
            for first, sizes, joined in connection.execute(
                f"SELECT first, sizes, stored FROM chunks_{number}"
            ).fetchall():
                records, place = [], 0
                for offset, size in enumerate(memoryview(sizes).cast("I"), first):
                    records.append(wanted.get(offset, joined[place : place + size]))
                    place += size
                lengths = struct.pack(f"<{len(records)}I", *map(len, records))
                connection.execute(
                    f"UPDATE chunks_{number} SET sizes = ?, stored = ? WHERE first = ?",
                    (lengths, b"".join(records), first),
                )

    return rewrite


def ways(log: str, folder: Path, *, failing: bool = False) -> list[Callable[[], Found]]:
    """Reading a log one by one, by columns, and by splits."""

    def found(name: str, read: Callable[[LogReader, Losses], list[pa.RecordBatch]]) -> Found:
        losses = folder / name
        options = {"log": log, "splitMessages": "50", "lossesFolder": str(losses), "failOnDataLoss": str(failing)}
        source = IotSphereSource({**options, "rows": "splits" if name == "splits" else "readings"})
        reader = source.reader(source.schema())
        assert isinstance(reader, LogReader)
        rows = [row for batch in read(reader, Losses(failing, str(losses))) for row in batch.to_pylist()]
        noted = [json.loads(path.read_text()) for path in losses.glob("*.json")]
        return Found(rows, sorted(tuple(gap.values()) for gap in noted))

    def by_hand(reader: LogReader, losses: Losses) -> list[pa.RecordBatch]:
        splits = [split for split in reader.partitions() if isinstance(split, Split)]
        return [batch for one in splits for batch in read_split(one, lambda: open_ranges(log), BY_HAND, losses)]

    def by_columns(reader: LogReader, _: Losses) -> list[pa.RecordBatch]:
        return [batch for split in reader.partitions() for batch in reader.read(split)]

    def by_splits(reader: LogReader, losses: Losses) -> list[pa.RecordBatch]:
        named = [batch for split in reader.partitions() for batch in reader.read(split)]
        return list(reading(open_ranges, log, losses)(named))

    return [lambda: found("hand", by_hand), lambda: found("columns", by_columns), lambda: found("splits", by_splits)]


@pytest.mark.parametrize("store", ["redis", "sqlite"])
def test_damaged_forged_foreign_and_poisonous_entries_are_the_same_by_every_way(
    store: str, redis_server: Server, tmp_path: Path
) -> None:
    if store == "redis":
        log, rewrite = fill_redis(redis_server.port, 800), in_redis(redis_server.port)
    else:
        log, rewrite = fill_sqlite(tmp_path, 800), in_sqlite(tmp_path / "log" / FILE_NAME)
    with open_ranges(log) as ranges:
        last = ranges.bounds(P0).last.offset
    assert last >= 100
    poison = {5 + 2 * place: record for place, record in enumerate(POISON)}
    broken = {63 + 3 * place: record for place, record in enumerate(UNREADABLE)} | {64: UNREADABLE[0]}
    rewrite(poison | broken)
    by_hand, by_columns, by_splits = (way() for way in ways(log, tmp_path))
    assert by_columns == by_hand
    assert by_splits == by_hand
    gaps = [(str(P0), 63, 64, "corrupt"), *((str(P0), at, at, "corrupt") for at in sorted(broken)[2:])]
    assert by_hand.gaps == gaps
    read = {row["offset"] for row in by_hand.rows if row["partition"] == 0}
    assert read == set(range(1, last + 1)) - broken.keys()
    assert len({(row["partition"], row["offset"]) for row in by_hand.rows}) == 800 - len(broken)
    unreadable = {row["offset"] for row in by_hand.rows if "unreadable" in row["quality"]}
    assert {5 + 2 * place for place in (0, 1, 2, 4, 5, 6, 7, 8, 9)} <= unreadable <= poison.keys()
    for way in ways(log, tmp_path, failing=True):
        with pytest.raises(
            MessagesMissed, match=r"2 messages of iotsphere/telemetry/0 offsets 63 to 64 are gone .corrupt"
        ):
            way()


@pytest.mark.parametrize("way", [0, 1, 2])
def test_what_retention_passed_within_a_range_is_told_by_every_way(tmp_path: Path, way: int) -> None:
    log = fill_sqlite(tmp_path, 2_000)
    with open_ranges(log) as ranges:
        start = Split(P0, Position(ranges.bounds(P0).last.epoch, 3), ranges.bounds(P0).last)
    trim(tmp_path)
    with open_ranges(log) as ranges:
        first = ranges.bounds(P0).first.offset
    assert 4 < first < start.end.offset
    gap = Gap(P0, 4, first - 1, "retention")

    def read(losses: Losses) -> list[pa.RecordBatch]:
        if way < 2:
            form = (BY_HAND, FORMATS["readings"])[way]
            return list(read_split(start, lambda: open_ranges(log), form, losses))
        named = list(read_split(start, lambda: open_ranges(log), FORMATS["splits"], losses))
        return list(reading(open_ranges, log, losses)(named))

    with pytest.raises(MessagesMissed, match=f"offsets 4 to {first - 1} are gone .retention") as caught:
        read(Losses(True, ""))
    assert caught.value.facts["gaps"] == (gap,)
    rows = [row["offset"] for batch in read(Losses(False, str(tmp_path / "losses"))) for row in batch.to_pylist()]
    assert rows == list(range(first, start.end.offset + 1))
    (noted,) = [json.loads(path.read_text()) for path in (tmp_path / "losses").glob("*.json")]
    assert noted == {"partition": str(P0), "first": 4, "last": first - 1, "reason": "retention"}


def test_a_job_that_reads_by_itself_names_what_is_gone(spark: SparkSession, tmp_path: Path) -> None:
    log = fill_sqlite(tmp_path, 2_000)
    with open_ranges(log) as ranges:
        start = {one: Position(ranges.bounds(one).last.epoch, 3) for one in ranges.partitions("telemetry")}
    trim(tmp_path)
    with open_ranges(log) as ranges:
        first = ranges.bounds(P0).first.offset

    def run_to(application: str, following: bool) -> Run:
        return Run(lake.JOB.settings({"compact_s": "0"}), application, following, tmp_path / "lake", "")

    source = {"log": log, "from": json.dumps(offsets(start))}
    with pytest.raises(MessagesMissed, match=f"{P0} offsets 4 to {first - 1} are gone .retention"):
        Runner(spark, Plan(lake.JOB, source, run_to), IotSphereSource)()
    # A file that nobody committed may lie there: another task has written it by then.
    table = str(tmp_path / "lake")
    assert not DeltaTable.is_deltatable(table) or not DeltaTable(table).file_uris()
    lenient = {**source, "failOnDataLoss": "false", "lossesFolder": str(tmp_path / "losses")}
    done = Runner(spark, Plan(lake.JOB, lenient, run_to), IotSphereSource)()
    (noted,) = [json.loads(path.read_text()) for path in (tmp_path / "losses").glob("*.json")]
    missing = noted["last"] - noted["first"] + 1
    assert (noted["first"], noted["last"], done.counts["rows"]) == (4, first - 1, 2_000 - 12 - missing)


def trim(data: Path) -> None:
    async def work() -> None:
        async with SqliteLog(data / "log", SystemClock()) as opened:
            await opened.retain(P0, Retention(max_bytes=20_000, hard_bytes=20_000), 0)

    asyncio.run(work())
