"""The source: options, places, exact ranges, limits, and what it says when something is gone. Mostly without Spark."""

from __future__ import annotations

import asyncio
import json
import pickle
import time
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from iotsphere.adapters import cursor
from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.spark.places import offsets, places, resolve, shared
from iotsphere.drivers.spark.source import LogReader, LogStreamReader, borders, read_options
from iotsphere.drivers.spark.splits import Losses, Split, divided, noted, passed_over
from iotsphere.drivers.sqlite.log import SqliteLog
from iotsphere.entities.channel import Retention
from iotsphere.entities.cursor import Cursor
from iotsphere.entities.errors import LogUnavailable, MessagesMissed, RequestInvalid, UnknownDomain
from iotsphere.entities.position import Gap, Partition, Position
from iotsphere.spark import IotSphereSource, open_ranges
from tests.support.telemetry import fill_sqlite

P = [Partition("iotsphere", "telemetry", number) for number in range(4)]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A log of 1,000 messages."""
    return fill_sqlite(tmp_path_factory.mktemp("log"), 1_000)


def stream_of(log: str, **options: str) -> LogStreamReader:
    source = IotSphereSource({"log": log, **options})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, LogStreamReader)
    return reader


def values_of(reader: LogReader | LogStreamReader, splits: object) -> list[float]:
    assert isinstance(splits, list)
    return [value for split in splits for batch in reader.read(split) for value in batch["value"].to_pylist()]


def trim(log: str, max_bytes: int) -> None:
    async def work() -> None:
        folder = Path(log.partition(":")[2]) / "log"
        async with SqliteLog(folder, SystemClock()) as opened:
            for partition in P:
                await opened.retain(partition, Retention(max_bytes=max_bytes, hard_bytes=max_bytes), 0)

    asyncio.run(work())


# Options


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "say which log"),
        ({"log": "sqlite:x", "form": "earliest"}, "no option 'form'"),
        ({"log": "sqlite:x", "rows": "cells"}, "rows='cells'"),
        ({"log": "sqlite:x", "channel": "commands", "rows": "readings"}, "holds no readings"),
        ({"log": "sqlite:x", "maxMessagesPerBatch": "0"}, "maxMessagesPerBatch='0'"),
        ({"log": "sqlite:x", "failOnDataLoss": "maybe"}, "failOnDataLoss='maybe'"),
    ],
)
def test_options_that_mean_nothing_are_named(options: dict[str, str], why: str) -> None:
    with pytest.raises(RequestInvalid, match=why):
        read_options(options)


def test_options_are_read_whatever_their_case() -> None:
    wanted = read_options({"LOG": "sqlite:x", "Domain": "a,b", "MAXMESSAGESPERBATCH": "7", "channel": "commands"})
    assert (wanted.domains, wanted.per_batch, wanted.form.name) == (("a", "b"), 7, "messages")
    assert read_options({"log": "sqlite:x", "domain": "*"}).domains == ()


@pytest.mark.parametrize("log", ["memory", "sqlite", "mongodb://127.0.0.1", "/data"])
def test_a_log_that_no_other_process_can_read_is_refused(log: str) -> None:
    with pytest.raises(RequestInvalid, match="no log that Spark can read"):
        open_ranges(log)


# Places


def test_places_are_words_times_cursors_and_offsets(log: str) -> None:
    now = time.time_ns() // 1_000_000
    with open_ranges(log) as ranges:

        def at(text: str) -> list[int]:
            return [position.offset for position in resolve(ranges, P, text, now).values()]

        ends = at("latest")
        assert sum(ends) == 1_000
        assert at("earliest") == at("-1h") == at("2020-01-01T00:00:00Z") == [0, 0, 0, 0]
        assert at("-0s") == ends
        some = {one: Position(ranges.bounds(one).last.epoch, 5) for one in P}
        assert resolve(ranges, P, json.dumps(offsets(some)), now) == some
        assert resolve(ranges, P, cursor.encode(Cursor("anything", some), b"k" * 16), now) == some
        with pytest.raises(RequestInvalid, match="says nothing of iotsphere/telemetry/3"):
            resolve(ranges, P, json.dumps(offsets({one: some[one] for one in P[:3]})), now)
        for text in ("tomorrow", "-5 apples", '{"a": 1}', "{", "AAAA"):
            with pytest.raises(RequestInvalid):
                resolve(ranges, P, text, now)


def test_a_limit_is_shared_by_what_waits() -> None:
    start = {P[0]: Position(1, 0), P[1]: Position(1, 90), P[2]: Position(1, 10), P[3]: Position(1, 0)}
    end = {P[0]: Position(1, 1_000), P[1]: Position(1, 100), P[2]: Position(1, 10), P[3]: Position(1, 990)}
    stops = shared(start, end, 200)
    assert [stops[one].offset for one in P] == [100, 91, 10, 99]
    assert shared(start, end, 2_000) == end


def test_a_split_is_divided_without_a_hole() -> None:
    parts = divided(Split(P[0], Position(1, 10), Position(2, 110)), 30)
    assert [(part.start.offset, part.end.offset) for part in parts] == [(10, 35), (35, 60), (60, 85), (85, 110)]
    assert (parts[0].start, parts[-1].end) == (Position(1, 10), Position(2, 110))
    assert divided(Split(P[0], Position(1, 10), Position(1, 10)), 30) == []


# Batch


def test_a_batch_has_every_message_once(log: str) -> None:
    source = IotSphereSource({"log": log, "splitMessages": "100"})
    reader = source.reader(source.schema())
    assert isinstance(reader, LogReader)
    splits = list(reader.partitions())
    assert len(splits) >= 10
    assert sorted(values_of(pickle.loads(pickle.dumps(reader)), splits)) == [float(n) for n in range(1_000)]


def test_messages_of_any_channel_have_their_payload(log: str) -> None:
    source = IotSphereSource({"log": log, "rows": "messages"})
    reader = source.reader(source.schema())
    assert isinstance(reader, LogReader)
    rows = [row for split in reader.partitions() for batch in reader.read(split) for row in batch.to_pylist()]
    assert len(rows) == 1_000
    seventh = next(row for row in rows if row["message_id"].endswith("7") and row["payload"] == '{"value":7}')
    assert (seventh["topic"], seventh["source"], seventh["message_type"], seventh["channel"]) == (
        "iotsphere/devices/d7/telemetry/temperature", "d7", "event", "telemetry",
    )  # fmt: skip


def test_an_unknown_domain_is_named(log: str) -> None:
    source = IotSphereSource({"log": log, "domain": "nowhere"})
    with pytest.raises(UnknownDomain, match="nowhere"):
        source.reader(source.schema()).partitions()


# Stream


def test_a_stream_reads_by_limits_and_repeats_exactly(log: str) -> None:
    reader = stream_of(log, maxMessagesPerBatch="300")
    place = reader.initialOffset()
    seen: list[float] = []
    for _ in range(20):
        end = reader.latestOffset(place, reader.getDefaultReadLimit())
        splits = list(reader.partitions(place, end))
        found = values_of(reader, splits)
        assert found == values_of(reader, list(reader.partitions(place, end)))
        assert len(found) <= 304
        if end == place:
            break
        seen += found
        place = end
    assert sorted(seen) == [float(n) for n in range(1_000)]
    assert place == reader.reportLatestOffset()
    reader.stop()


def test_available_now_stops_where_the_log_ended_at_the_start(tmp_path: Path) -> None:
    log = fill_sqlite(tmp_path, 100)
    reader = stream_of(log)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    fill_sqlite(tmp_path, 50, start=100)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert sum(offset for _, offset in end.values()) == 100
    assert reader.latestOffset(end, ReadMaxRows(10)) == end
    assert sum(offset for _, offset in (reader.reportLatestOffset() or {}).values()) == 150
    reader.stop()


def test_a_new_partition_joins_from_its_beginning(log: str) -> None:
    reader = stream_of(log)
    start = {name: place for name, place in reader.initialOffset().items() if not name.endswith("/3")}
    end = reader.latestOffset(start, ReadAllAvailable())
    assert sum(offset for _, offset in end.values()) == 1_000
    assert sorted(values_of(reader, list(reader.partitions(start, end)))) == [float(n) for n in range(1_000)]
    reader.stop()


def test_what_retention_has_passed_is_an_error_with_its_range(tmp_path: Path) -> None:
    log = fill_sqlite(tmp_path, 400)
    reader = stream_of(log)
    start = reader.initialOffset()
    trim(log, 5_000)
    end = reader.latestOffset(start, ReadAllAvailable())
    (split, *_) = reader.partitions(start, end)
    assert isinstance(split, Split)
    with open_ranges(log) as ranges:
        last = ranges.bounds(split.partition).first.offset - 1
    with pytest.raises(
        MessagesMissed, match=rf"{split.partition} offsets 1 to {last} are gone \(retention\)"
    ) as caught:
        list(reader.read(split))
    assert caught.value.facts["gaps"] == (Gap(split.partition, 1, last, "retention"),)
    reader.stop()
    lenient = stream_of(log, failOnDataLoss="false", lossesFolder=str(tmp_path / "losses"))
    found = values_of(lenient, list(lenient.partitions(start, end)))
    found_again = values_of(lenient, list(lenient.partitions(start, end)))
    assert found == found_again
    noted = [json.loads(path.read_text()) for path in (tmp_path / "losses").glob("*.json")]
    assert len(noted) == 4
    assert sum(one["last"] - one["first"] + 1 for one in noted) + len(found) == 400


def test_what_a_run_passes_over_counts_once_and_is_no_loss_of_the_next_run(tmp_path: Path) -> None:
    folder, losses = str(tmp_path / "losses"), Losses(False, str(tmp_path / "losses"))
    assert noted("") == noted(folder) == {}
    losses.meet(Gap(P[0], 1, 100, "retention"))
    assert passed_over(folder, {}) == 100
    before = noted(folder)
    assert passed_over(folder, before) == 0
    for gap in (
        Gap(P[0], 1, 100, "retention"),
        Gap(P[0], 1, 150, "retention"),
        Gap(P[0], 121, 160, "corrupt"),
        Gap(P[0], 171, 180, "retention"),
        Gap(P[1], 1, 7, "retention"),
        Gap(P[2], 5, 4, "rebuilt"),  # nobody knows how far
    ):
        losses.meet(gap)
    assert passed_over(folder, before) == 160 + 10 + 7 + 1
    assert len(noted(folder)) == 6, "they stay"


def test_a_log_that_is_away_is_waited_for_and_then_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = fill_sqlite(tmp_path, 10)
    reader = stream_of(log)
    start = reader.initialOffset()
    reader.stop()
    (tmp_path / "log").rename(tmp_path / "away")
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    assert reader.reportLatestOffset() is None
    monkeypatch.setattr("iotsphere.drivers.spark.source.OUTAGE_S", -1.0)
    with pytest.raises(LogUnavailable):
        reader.latestOffset(start, ReadAllAvailable())
    (tmp_path / "away").rename(tmp_path / "log")
    end = reader.latestOffset(start, ReadAllAvailable())
    assert sum(position.offset for position in places(end).values()) == 10
    reader.stop()


def test_offsets_that_no_log_has_reached_are_refused_and_a_date_is_its_midnight(tmp_path: Path) -> None:
    wanted = {"log": fill_sqlite(tmp_path, 40), "domain": "iotsphere"}
    start, end = borders(open_ranges, read_options(wanted))
    later = {name: [epoch, offset + 50] for name, (epoch, offset) in offsets(end).items()}
    for option in ("from", "to"):
        with pytest.raises(RequestInvalid, match=r"iotsphere/telemetry/0 ends at offset \d+: there is no \d+ yet"):
            borders(open_ranges, read_options({**wanted, option: json.dumps(later)}))
    assert borders(open_ranges, read_options({**wanted, "from": "2020-01-01"})) == (start, end)
    with pytest.raises(RequestInvalid, match="write earliest, latest, a date"):
        borders(open_ranges, read_options({**wanted, "from": "2020-13-01"}))
