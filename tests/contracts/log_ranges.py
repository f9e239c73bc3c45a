"""The contract of ``LogRanges``: inherit from ``LogRangesContract``, give ``log``, ``ranges`` and ``damage``."""

from __future__ import annotations

import pytest

from iotsphere.entities.channel import ChannelSpec, Retention
from iotsphere.entities.errors import UnknownDomain
from iotsphere.entities.message import Entry
from iotsphere.entities.position import Gap, Partition, Position
from iotsphere.use_cases.ports.log_ranges import LogRanges
from iotsphere.use_cases.ports.message_log import MessageLog

from .records import BEGINNING, CHANNELS, COMMANDS, DOMAIN, P0, P1, offsets, records
from .times import PassTime, TurnedByHand

FOREVER = 1 << 50


def taken(
    ranges: LogRanges, after: Position, upto: Position, partition: Partition = P0
) -> tuple[list[Entry], list[Gap]]:
    """All entries and all gaps of a range; asserts that they lie one behind the other."""
    entries: list[Entry] = []
    gaps: list[Gap] = []
    place = None
    for piece in ranges.read(partition, after, upto):
        assert piece.partition == partition
        if piece.gap is not None:
            gaps.append(piece.gap)
        for entry in piece.entries:
            assert place is None or entry.position.offset > place
            place = entry.position.offset
        entries += piece.entries
        assert not piece.entries or piece.end == piece.entries[-1].position
    return entries, gaps


class LogRangesContract(TurnedByHand):
    """A gateway appends to ``log``, which is empty at first; ``ranges`` reads the same store by itself."""

    @pytest.fixture(autouse=True)
    async def channels(self, log: MessageLog) -> None:
        await log.ensure(DOMAIN, CHANNELS)

    @pytest.fixture
    def ranges(self, log: MessageLog) -> LogRanges:
        raise AssertionError(f"{type(self).__name__} must open ranges of {log}")

    async def damage(self, log: MessageLog, partition: Partition, offset: int) -> None:
        raise AssertionError(f"{type(self).__name__} must say how to damage {partition} {offset} of {log}")

    async def test_partitions_are_looked_up_anew(self, log: MessageLog, ranges: LogRanges) -> None:
        assert list(ranges.partitions("telemetry")) == [P0, P1]
        assert list(ranges.partitions("commands", [DOMAIN])) == [COMMANDS]
        await log.ensure("other", {"telemetry": ChannelSpec(1)})
        other = Partition("other", "telemetry", 0)
        assert list(ranges.partitions("telemetry")) == [P0, P1, other]
        assert list(ranges.partitions("telemetry", ["other"])) == [other]
        assert (ranges.bounds(other).first.offset, ranges.bounds(other).last.offset) == (1, 0)
        with pytest.raises(UnknownDomain, match="nowhere"):
            ranges.partitions("telemetry", ["nowhere"])
        with pytest.raises(UnknownDomain):
            ranges.bounds(Partition(DOMAIN, "telemetry", 9))

    async def test_a_range_is_read_again_with_the_same_entries(self, log: MessageLog, ranges: LogRanges) -> None:
        batch = records(30)
        positions = (await log.append(batch)).positions
        await log.append(records(5))
        entries, gaps = taken(ranges, positions[9], positions[29])
        assert offsets([entry.position for entry in entries]) == list(range(11, 31))
        assert [entry.record for entry in entries] == batch[10:]
        assert gaps == []
        assert taken(ranges, positions[9], positions[29]) == (entries, [])
        assert taken(ranges, positions[9], positions[9]) == ([], [])
        assert ranges.bounds(P0).last.offset == 35

    async def test_the_beginning_has_no_gap(self, log: MessageLog, ranges: LogRanges) -> None:
        positions = (await log.append(records(8))).positions
        await log.retain(P0, Retention(max_bytes=400), 0)
        first = ranges.bounds(P0).first.offset
        assert first > 1
        entries, gaps = taken(ranges, BEGINNING, positions[-1])
        assert offsets([entry.position for entry in entries]) == list(range(first, 9))
        assert gaps == []

    async def test_large_records_come_in_several_slices(self, log: MessageLog, ranges: LogRanges) -> None:
        positions = (await log.append(records(60, size=100_000))).positions
        pieces = list(ranges.read(P0, BEGINNING, positions[-1]))
        assert sum(len(piece.entries) for piece in pieces) == 60
        assert len(pieces) >= 3
        assert max(len(piece.entries) for piece in pieces) <= 32

    async def test_what_is_trimmed_is_told_with_its_range(self, log: MessageLog, ranges: LogRanges) -> None:
        positions = (await log.append(records(40, size=1_000))).positions
        await log.retain(P0, Retention(max_bytes=10_000, hard_bytes=10_000), 0)
        first = ranges.bounds(P0).first.offset
        assert 20 < first < 40
        entries, gaps = taken(ranges, positions[4], positions[-1])
        assert gaps == [Gap(P0, 6, first - 1, "retention")]
        assert offsets([entry.position for entry in entries]) == list(range(first, 41))
        assert taken(ranges, positions[4], positions[9]) == ([], [Gap(P0, 6, 10, "retention")])

    async def test_what_is_trimmed_while_it_is_read_is_told(self, log: MessageLog, ranges: LogRanges) -> None:
        positions = (await log.append(records(60, size=100_000))).positions
        reading = ranges.read(P0, BEGINNING, positions[-1])
        seen = offsets([entry.position for entry in next(reading).entries])
        await log.retain(P0, Retention(max_age=0, hard_age=0), FOREVER)
        gaps = [piece.gap for piece in reading if piece.gap is not None]
        assert [gap.reason for gap in gaps] == ["retention"]
        assert (seen[0], gaps[-1].last) == (1, 60)
        assert sum(gap.missing for gap in gaps) + seen[-1] == 60

    async def test_damage_is_told_in_its_place(self, log: MessageLog, ranges: LogRanges) -> None:
        positions = (await log.append(records(9))).positions
        for offset in (1, 4, 5, 9):
            await self.damage(log, P0, offset)
        entries, gaps = taken(ranges, BEGINNING, positions[-1])
        assert offsets([entry.position for entry in entries]) == [2, 3, 6, 7, 8]
        assert gaps == [Gap(P0, 1, 1, "corrupt"), Gap(P0, 4, 5, "corrupt"), Gap(P0, 9, 9, "corrupt")]

    async def test_an_epoch_that_never_was_ends_the_range(self, log: MessageLog, ranges: LogRanges) -> None:
        positions = (await log.append(records(3))).positions
        entries, gaps = taken(ranges, positions[0], Position(positions[0].epoch + 7, 9))
        assert (entries, [gap.reason for gap in gaps]) == ([], ["rebuilt"])
        entries, gaps = taken(ranges, positions[0], Position(positions[0].epoch, 9))
        assert offsets([entry.position for entry in entries]) == [2, 3]
        assert [(gap.reason, gap.first) for gap in gaps] == [("rebuilt", 4)]

    async def test_a_time_is_found(self, log: MessageLog, ranges: LogRanges, pass_time: PassTime) -> None:
        await log.append(records(3))
        await pass_time(60)
        young = (await log.append(records(2))).positions
        entries, _ = taken(ranges, BEGINNING, young[-1])
        assert ranges.at(P0, entries[3].appended_at).offset == 3
        assert ranges.at(P0, 0).offset == 0
        assert ranges.at(P0, FOREVER) == young[-1]

    async def test_it_reads_beside_a_log_that_is_being_written(self, log: MessageLog, ranges: LogRanges) -> None:
        seen: list[str] = []
        place = BEGINNING
        written: list[str] = []
        for _ in range(10):
            batch = records(7)
            written += [record.message_id for record in batch]
            await log.append(batch)
            upto = ranges.bounds(P0).last
            entries, gaps = taken(ranges, place, upto)
            assert gaps == []
            seen += [entry.record.message_id for entry in entries]
            place = upto
        assert seen == written
