"""What every log promises about appending and reading."""

from __future__ import annotations

import asyncio

import pytest

from iotsphere.entities.channel import ChannelSpec
from iotsphere.entities.errors import UnknownDomain
from iotsphere.entities.message import Record
from iotsphere.entities.position import Bounds, Gap, Partition, Position
from iotsphere.use_cases.ports.message_log import MessageLog
from iotsphere.use_cases.publish import MessagePublishUseCase, renamed

from .records import BEGINNING, CHANNELS, COMMANDS, DOMAIN, P0, P1, ids, offsets, read_all, record, records
from .times import PassTime, TurnedByHand


class LogAppendContract(TurnedByHand):
    """Needs the fixture ``log``: an open, empty log of the driver, without any domain."""

    @pytest.fixture(autouse=True)
    async def channels(self, log: MessageLog) -> None:
        await log.ensure(DOMAIN, CHANNELS)

    async def test_offsets_are_dense_from_one_in_each_partition(self, log: MessageLog) -> None:
        first = await log.append([record(P0), record(P1), record(P0), record(COMMANDS), record(P1)])
        second = await log.append([record(P1), record(P0)])
        assert offsets(first.positions) == [1, 1, 2, 1, 2]
        assert offsets(second.positions) == [3, 3]
        assert first.duplicates == second.duplicates == frozenset()
        assert len({position.epoch for position in (*first.positions, *second.positions)}) == 1
        assert first.positions[0].epoch > 0

    async def test_what_was_appended_is_read_back_unchanged_and_in_order(self, log: MessageLog) -> None:
        batch = [
            record(P0, body="€ \U0001f4a1 \0".encode(), retain=True, expires_at=1_767_225_999_999),
            record(P0, minted=True),
            Record(P0, "iotsphere/system/status", "no uuid, ünïcode", b"", -5),
            record(P0, body=bytes(range(256)) * 100),
        ]
        appended = await log.append(batch)
        piece = await log.read(P0, BEGINNING)
        assert [entry.record for entry in piece.entries] == batch
        assert [entry.position for entry in piece.entries] == list(appended.positions)
        assert piece.partition == P0
        assert piece.end == appended.positions[-1]
        assert piece.gap is None

    async def test_concurrent_appends_keep_each_batch_in_order(self, log: MessageLog) -> None:
        batches = [records(7) for _ in range(20)]
        appended = await asyncio.gather(*(log.append(batch) for batch in batches))
        assert sorted(offset for one in appended for offset in offsets(one.positions)) == list(range(1, 141))
        entries = await read_all(log)
        for batch, one in zip(batches, appended, strict=True):
            assert offsets(one.positions) == sorted(offsets(one.positions))
            assert [entries[position.offset - 1].record for position in one.positions] == batch

    async def test_an_empty_batch_is_nothing(self, log: MessageLog) -> None:
        appended = await log.append([])
        assert (list(appended.positions), appended.duplicates) == ([], frozenset())

    async def test_a_repeated_message_gets_its_first_position(self, log: MessageLog) -> None:
        batch = records(3)
        first = await log.append(batch)
        mixed = await log.append([record(), batch[1], batch[2]._replace(body=b"{}"), record()])
        assert offsets(mixed.positions) == [4, 2, 3, 5]
        assert list(mixed.positions[1:3]) == list(first.positions[1:])
        assert mixed.duplicates == {1, 2}
        assert [entry.record for entry in (await read_all(log))[:3]] == batch

    async def test_the_same_id_twice_in_one_batch_is_one_message(self, log: MessageLog) -> None:
        twin = record()
        appended = await log.append([twin, record(), twin, twin])
        assert offsets(appended.positions) == [1, 2, 1, 1]
        assert appended.duplicates == {2, 3}
        assert len(await read_all(log)) == 2

    async def test_a_batch_of_duplicates_only(self, log: MessageLog) -> None:
        batch = records(3)
        first = await log.append(batch)
        again = await log.append(batch)
        assert list(again.positions) == list(first.positions)
        assert again.duplicates == {0, 1, 2}

    async def test_concurrent_repetitions_are_one_message(self, log: MessageLog) -> None:
        batch = records(5)
        appended = await asyncio.gather(*(log.append(batch) for _ in range(6)))
        assert {tuple(one.positions) for one in appended} == {tuple(appended[0].positions)}
        assert sum(len(one.duplicates) for one in appended) == 25
        assert len(await read_all(log)) == 5

    async def test_minted_records_can_be_repeated_by_the_same_driver_object(self, log: MessageLog) -> None:
        batch = records(4, minted=True)
        first = await log.append(batch)
        again = await log.append([*batch[2:], record(minted=True)])
        assert list(again.positions[:2]) == list(first.positions[2:])
        assert offsets(again.positions) == [3, 4, 5]
        assert again.duplicates == {0, 1}

    async def test_ids_are_compared_exactly(self, log: MessageLog) -> None:
        appended = await log.append([record(message_id=text) for text in ("a", "A", "a ", "á", "a\u0301")])
        assert offsets(appended.positions) == [1, 2, 3, 4, 5]

    async def test_a_message_id_counts_per_partition(self, log: MessageLog) -> None:
        """A position says nothing about its partition, so the first one of another partition would mislead."""
        appended = await log.append([record(P0, "same"), record(P1, "same")])
        assert offsets(appended.positions) == [1, 1]
        assert appended.duplicates == frozenset()
        assert ids(await read_all(log, P1)) == ["same"]

    async def test_nothing_of_a_cancelled_append_is_repeated(self, log: MessageLog) -> None:
        batch = records(50, minted=True)
        task = asyncio.create_task(log.append(batch))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await log.append(batch)
        assert ids(await read_all(log)) == [one.message_id for one in batch]

    async def test_the_stored_partition_count_wins(self, log: MessageLog) -> None:
        await log.ensure(DOMAIN, {"telemetry": ChannelSpec(partitions=9), "users": ChannelSpec(partitions=3)})
        assert list(log.partitions(DOMAIN, "telemetry")) == [P0, P1]
        assert [partition.number for partition in log.partitions(DOMAIN, "users")] == [0, 1, 2]
        await log.ensure(DOMAIN, CHANNELS)
        assert len(log.partitions(DOMAIN, "telemetry")) == 2

    async def test_domains_are_apart(self, log: MessageLog) -> None:
        await log.ensure("acme", {"telemetry": ChannelSpec(partitions=1)})
        foreign = Partition("acme", "telemetry", 0)
        assert sorted(log.domains()) == ["acme", DOMAIN]
        appended = await log.append([record(P0, "same"), record(foreign, "same")])
        assert offsets(appended.positions) == [1, 1]
        assert appended.duplicates == frozenset()
        assert len(await read_all(log, foreign)) == 1
        mine = await log.find(DOMAIN, "same")
        assert mine is not None
        assert mine.record.partition == P0
        assert await log.find("acme", "other") is None

    async def test_unknown_partitions_are_refused(self, log: MessageLog) -> None:
        for unknown in (Partition("nowhere", "telemetry", 0), Partition(DOMAIN, "batch", 0), P0._replace(number=2)):
            with pytest.raises(UnknownDomain):
                await log.append([record(P0), record(unknown)])
            with pytest.raises(UnknownDomain):
                await log.read(unknown, BEGINNING)
            with pytest.raises(UnknownDomain):
                await log.bounds(unknown)
            with pytest.raises(UnknownDomain):
                await log.at(unknown, 0)
            with pytest.raises(UnknownDomain):
                await log.register("iotsphere/store", {unknown: BEGINNING})
        for domain, channel in (("nowhere", "telemetry"), (DOMAIN, "batch")):
            with pytest.raises(UnknownDomain):
                log.partitions(domain, channel)

    async def test_bounds_of_an_empty_and_a_filled_partition(self, log: MessageLog) -> None:
        empty = await log.bounds(P0)
        assert (empty.first.offset, empty.last.offset) == (1, 0)
        positions = (await log.append(records(3))).positions
        assert await log.bounds(P0) == Bounds(positions[0], positions[2])
        assert (await log.bounds(P1)).last.offset == 0

    async def test_a_read_holds_at_most_limit_entries(self, log: MessageLog) -> None:
        positions = (await log.append(records(10))).positions
        piece = await log.read(P0, BEGINNING, limit=4)
        assert [entry.position for entry in piece.entries] == list(positions[:4])
        assert piece.end == positions[3]
        piece = await log.read(P0, piece.end, limit=100)
        assert [entry.position for entry in piece.entries] == list(positions[4:])
        assert piece.end == positions[9]

    async def test_a_read_holds_about_max_bytes_and_at_least_one_entry(self, log: MessageLog) -> None:
        await log.append(records(10, size=1_000))
        piece = await log.read(P0, BEGINNING, max_bytes=3_500)
        assert 3 <= len(piece.entries) <= 4
        assert piece.end == piece.entries[-1].position
        assert len((await log.read(P0, piece.end, max_bytes=1)).entries) == 1

    async def test_a_reader_that_has_everything_stays_where_it_is(self, log: MessageLog) -> None:
        assert await log.read(P0, BEGINNING) == (P0, [], BEGINNING, None)
        last = (await log.append(records(2))).positions[-1]
        assert await log.read(P0, last) == (P0, [], last, None)

    async def test_a_position_of_an_unknown_epoch_tells_that_the_log_was_rebuilt(self, log: MessageLog) -> None:
        positions = (await log.append(records(3))).positions
        for stranger in (Position(positions[0].epoch - 1_000, 2), Position(7, 0), Position(0, 2)):
            piece = await log.read(P0, stranger)
            assert piece.gap == Gap(P0, 1, 0, "rebuilt")
            assert piece.gap.missing == 0
            assert [entry.position for entry in piece.entries] == list(positions)
            assert piece.end == positions[-1]

    async def test_a_gap_in_an_empty_partition_is_told_once(self, log: MessageLog) -> None:
        piece = await log.read(P0, Position(7, 5))
        assert piece.gap == Gap(P0, 1, 0, "rebuilt")
        assert piece.entries == []
        assert await log.read(P0, piece.end) == (P0, [], piece.end, None)

    async def test_a_position_beyond_the_end_is_not_believed(self, log: MessageLog) -> None:
        """Such a reader saw messages that the store forgot: whatever comes next must reach it."""
        last = (await log.append(records(3))).positions[-1]
        piece = await log.read(P0, last._replace(offset=10))
        assert piece.gap == Gap(P0, 4, 3, "rebuilt")
        assert piece.end == last
        more = (await log.append(records(2))).positions
        assert [entry.position for entry in (await log.read(P0, piece.end)).entries] == list(more)

    async def test_entries_tell_when_they_were_appended(self, log: MessageLog, pass_time: PassTime) -> None:
        await log.append(records(2))
        await pass_time(50)
        await log.append(records(1))
        times = [entry.appended_at for entry in await read_all(log)]
        assert times == sorted(times)
        assert times[2] - times[1] >= 50

    async def test_at_finds_the_place_of_a_time(self, log: MessageLog, pass_time: PassTime) -> None:
        assert (await log.at(P0, 0)).offset == 0
        await log.append(records(3))
        await pass_time(50)
        await log.append(records(2))
        entries = await read_all(log)
        late = entries[3].appended_at
        assert (await log.at(P0, 0)).offset == 0
        assert (await log.at(P0, late)) == entries[2].position
        assert (await log.at(P0, late - 1)) == entries[2].position
        assert (await log.at(P0, entries[4].appended_at + 1)) == entries[4].position
        assert ids((await log.read(P0, await log.at(P0, late))).entries) == ids(entries[3:])

    async def test_find_tells_where_a_message_is(self, log: MessageLog) -> None:
        batch = [record(P0), record(P1, minted=True), record(COMMANDS, "any text")]
        appended = await log.append(batch)
        for one, position in zip(batch, appended.positions, strict=True):
            entry = await log.find(DOMAIN, one.message_id)
            assert entry is not None
            assert (entry.record, entry.position) == (one, position)
        assert await log.find(DOMAIN, "00000000-0000-7000-8000-ffffffffffff") is None

    async def test_entries_are_found_at_the_places_of_an_append(self, log: MessageLog) -> None:
        batch = [record(P0), record(P1), record(COMMANDS), record(P0)]
        first = await log.append(batch)
        again = await log.append([*batch[::-1], record(P1)])
        places = [(one.partition, position) for one, position in zip(batch[::-1], again.positions[:4], strict=True)]
        found = await log.entries(places)
        assert [(each.record, each.position) for each in found if each is not None] == [
            (one, position) for one, (_, position) in zip(batch[::-1], places, strict=True)
        ]
        beyond = first.positions[0]._replace(offset=99)
        assert await log.entries([places[0], (P0, beyond), places[0]]) == [found[0], None, found[0]]
        assert list(await log.entries([])) == []

    async def test_hundreds_of_entries_are_found_at_once(self, log: MessageLog) -> None:
        batch = records(600)
        places = [(P0, position) for position in (await log.append(batch)).positions]
        found = await log.entries(places[::-1])
        assert [each.record for each in found if each is not None] == batch[::-1]

    async def test_an_id_that_another_topic_has_used_costs_no_message(self, log: MessageLog) -> None:
        """What a publisher does on each log: two senders chose the same ids."""
        publish = MessagePublishUseCase(log)
        ours = [
            record(P0, body=b'{"metadata":{"messageId":"same-%d"}}' % n, message_id=f"same-{n}") for n in range(300)
        ]
        theirs = [one._replace(topic="iotsphere/devices/other/telemetry") for one in ours]
        assert offsets((await publish(ours)).positions) == list(range(1, 301))
        assert offsets((await publish(theirs)).positions) == list(range(301, 601))
        again = await publish([*theirs, *ours])
        assert offsets(again.positions) == [*range(301, 601), *range(1, 301)]
        assert (publish.accepted, publish.duplicates, publish.renamed) == (600, 600, 300)
        assert [entry.record for entry in await read_all(log)] == [*ours, *map(renamed, theirs)]
        await publish.close(1)

    async def test_it_is_ready_and_says_how_durable_it_is(self, log: MessageLog) -> None:
        await log.ready()
        assert log.durability in ("fsynced", "logged", "memory")
