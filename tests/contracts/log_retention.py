"""What every log promises about retention: never silently below a reader, and past the cap it is announced."""

from __future__ import annotations

from iotsphere.entities.channel import DAY_MS, Retention
from iotsphere.entities.position import Gap
from iotsphere.use_cases.ports.message_log import MessageLog, Tally

from .log_append import LogAppendContract
from .records import BEGINNING, DOMAIN, P0, P1, ids, offsets, read_all, records
from .times import PassTime

STORE = "iotsphere/store"
SLOW = "iotsphere/slow"
FOREVER = 1 << 50
HOUR = 3_600_000


class LogRetentionContract(LogAppendContract):
    """``retain`` takes the time as an argument, so nothing has to be waited for."""

    async def test_nothing_goes_before_its_time(self, log: MessageLog) -> None:
        await log.append(records(5))
        now = (await read_all(log))[-1].appended_at
        assert await log.retain(P0, Retention(), now + DAY_MS) is None
        assert len(await read_all(log)) == 5

    async def test_old_entries_go(self, log: MessageLog, pass_time: PassTime) -> None:
        old = (await log.append(records(3))).positions
        await pass_time(100)
        young = (await log.append(records(2))).positions
        boundary = (await read_all(log))[3].appended_at
        assert await log.retain(P0, Retention(max_age=HOUR), boundary + HOUR - 20) is None
        bounds = await log.bounds(P0)
        assert (bounds.first, bounds.last) == (young[0], young[1])
        piece = await log.read(P0, old[0])
        assert piece.gap == Gap(P0, 2, 3, "retention")
        assert piece.gap.missing == 2
        assert piece.end.offset >= 3
        rest = piece.entries or (await log.read(P0, piece.end)).entries
        assert [entry.position for entry in rest] == list(young)

    async def test_the_beginning_has_no_gap(self, log: MessageLog, pass_time: PassTime) -> None:
        await log.append(records(3))
        await pass_time(100)
        await log.append(records(2))
        entries = await read_all(log)
        await log.retain(P0, Retention(max_age=HOUR), entries[3].appended_at + HOUR - 20)
        piece = await log.read(P0, BEGINNING)
        assert piece.gap is None
        assert ids(piece.entries) == ids(entries[3:])
        assert (await log.at(P0, 0)).offset == 3

    async def test_a_gap_is_told_even_when_nothing_is_left(self, log: MessageLog) -> None:
        await log.append(records(4))
        first = (await read_all(log))[0].position
        await log.retain(P0, Retention(max_age=HOUR), FOREVER)
        bounds = await log.bounds(P0)
        assert (bounds.first.offset, bounds.last.offset) == (5, 4)
        piece = await log.read(P0, first)
        assert (piece.gap, piece.entries, piece.end.offset) == (Gap(P0, 2, 4, "retention"), [], 4)
        assert await log.read(P0, piece.end) == (P0, [], piece.end, None)
        assert offsets((await log.append(records(1))).positions) == [5]
        assert await log.find(DOMAIN, "gone") is None

    async def test_the_oldest_bytes_go(self, log: MessageLog) -> None:
        await log.append(records(100, size=1_000))
        assert await log.retain(P0, Retention(max_bytes=50_000), 0) is None
        kept = await read_all(log)
        assert 25 <= len(kept) <= 50
        assert kept[-1].position.offset == 100

    async def test_partitions_are_trimmed_apart(self, log: MessageLog) -> None:
        await log.append([*records(3, P0), *records(3, P1)])
        await log.retain(P0, Retention(max_age=0), FOREVER)
        assert len(await read_all(log, P1)) == 3

    async def test_a_registered_reader_holds_what_it_has_not_read(self, log: MessageLog) -> None:
        positions = (await log.append(records(10))).positions
        await log.register(STORE, {P0: BEGINNING})
        await log.register(SLOW, {P0: BEGINNING})
        await log.commit(STORE, {P0: (positions[8], Tally(applied=9))})
        await log.commit(SLOW, {P0: (positions[3], Tally(applied=4))})
        soft = Retention(max_age=0, max_bytes=0, hard_age=FOREVER, hard_bytes=FOREVER)
        assert await log.retain(P0, soft, FOREVER) is None
        assert (await log.bounds(P0)).first == positions[4]
        assert (await log.read(P0, positions[3])).gap is None
        await log.forget(SLOW)
        assert await log.retain(P0, soft, FOREVER) is None
        assert (await log.bounds(P0)).first == positions[9]
        assert list(await log.losses(DOMAIN)) == []

    async def test_past_the_cap_the_loss_is_announced_with_its_range(self, log: MessageLog) -> None:
        positions = (await log.append(records(10))).positions
        await log.append(records(1, P1))
        await log.register(STORE, {P0: BEGINNING})
        await log.register(SLOW, {P0: BEGINNING, P1: BEGINNING})
        await log.commit(STORE, {P0: (positions[9], Tally(applied=10))})
        await log.commit(SLOW, {P0: (positions[3], Tally(applied=4))})
        hard = Retention(max_age=0, max_bytes=0, hard_age=0, hard_bytes=FOREVER)
        assert await log.retain(P0, hard, FOREVER) == Gap(P0, 5, 10, "retention")
        assert list(await log.losses(DOMAIN)) == [(SLOW, Gap(P0, 5, 10, "retention"))]
        assert list(await log.losses("elsewhere")) == []
        assert (await log.read(P0, positions[3])).gap == Gap(P0, 5, 10, "retention")
        assert len(await read_all(log, P1)) == 1

    async def test_a_loss_is_announced_once(self, log: MessageLog) -> None:
        await log.append(records(4))
        await log.register(SLOW, {P0: BEGINNING})
        hard = Retention(max_age=0, max_bytes=0, hard_age=0, hard_bytes=0)
        assert await log.retain(P0, hard, FOREVER) == Gap(P0, 1, 4, "retention")
        assert await log.retain(P0, hard, FOREVER) is None
        await log.append(records(2))
        assert await log.retain(P0, hard, FOREVER) == Gap(P0, 5, 6, "retention")
        assert [gap for _, gap in await log.losses(DOMAIN)] == [
            Gap(P0, 1, 4, "retention"),
            Gap(P0, 5, 6, "retention"),
        ]

    async def test_the_hard_cap_takes_no_more_than_it_must(self, log: MessageLog) -> None:
        await log.append(records(100, size=1_000))
        await log.register(SLOW, {P0: BEGINNING})
        cap = Retention(max_age=FOREVER, max_bytes=10_000, hard_age=FOREVER, hard_bytes=60_000)
        gap = await log.retain(P0, cap, 0)
        bounds = await log.bounds(P0)
        assert gap == Gap(P0, 1, bounds.first.offset - 1, "retention")
        assert 30 <= bounds.last.offset - bounds.first.offset + 1 <= 60

    async def test_a_message_whose_entry_is_gone_is_still_known_as_repeated(self, log: MessageLog) -> None:
        batch = records(2)
        positions = (await log.append(batch)).positions
        await log.retain(P0, Retention(max_age=0), FOREVER)
        again = await log.append(batch)
        assert list(again.positions) == list(positions)
        assert again.duplicates == {0, 1}
