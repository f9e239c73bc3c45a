"""The ledger balances to zero, says where each message is, and shows a planted fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iotsphere.entities.channel import Retention
from iotsphere.entities.errors import NotFound
from iotsphere.entities.position import Partition, Position
from iotsphere.use_cases.ledger import ChannelAccount, Ledger, ReaderAccount
from iotsphere.use_cases.ports.message_log import Tally
from iotsphere.use_cases.ports.work_queue import Backlog
from tests.support.rooms import Rooms

TOPIC = "iotsphere/devices/d1/telemetry"


def account(rooms_report: object, reader: str, channel: str) -> ReaderAccount:
    readers = rooms_report.readers  # type: ignore[attr-defined]  # a LedgerReport
    found = [one for one in readers if (one.reader, one.channel) == (reader, channel)]
    assert len(found) == 1
    assert isinstance(found[0], ReaderAccount)
    return found[0]


async def test_channels_say_what_they_accepted_and_still_hold(rooms: Rooms) -> None:
    for i in range(9):
        said = await rooms.say(TOPIC, {"n": i})
    rooms.log.shelf(said.record.partition).trim(4)
    report = await rooms.ledger(rooms.operator)
    assert report.channels[0] == ChannelAccount("telemetry", 4, 9, 5)
    assert [one.channel for one in report.channels] == ["telemetry", "shadow", "commands", "users", "system", "batch"]
    assert sum(one.accepted for one in report.channels) == 9


async def test_a_reader_is_accounted_for_from_its_start(rooms: Rooms) -> None:
    said = [await rooms.say(TOPIC, {"n": i}) for i in range(12)]
    partition = said[0].record.partition
    await rooms.log.register("iotsphere/shadow", {partition: said[1].position})
    await rooms.log.commit("iotsphere/shadow", {partition: (said[8].position, Tally(3, 1, 1, 1, 1))})
    report = await rooms.ledger(rooms.operator)
    mine = account(report, "iotsphere/shadow", "telemetry")
    assert mine == ReaderAccount("iotsphere/shadow", "reader", "telemetry", 10, 3, 1, 1, 1, 1, 3)
    assert (mine.imbalance, report.imbalance) == (0, 0)
    await rooms.log.commit("iotsphere/shadow", {partition: (said[11].position, Tally(applied=2))})
    report = await rooms.ledger(rooms.operator)
    assert (account(report, "iotsphere/shadow", "telemetry").imbalance, report.imbalance) == (1, 1), "one unaccounted"


async def test_imbalances_of_opposite_signs_do_not_hide_each_other(rooms: Rooms) -> None:
    said = [await rooms.say(TOPIC, {"n": i}) for i in range(4)]
    partition = said[0].record.partition
    for reader, applied in (("iotsphere/a", 3), ("iotsphere/b", 5)):
        await rooms.log.register(reader, {partition: Position(said[0].position.epoch, 0)})
        await rooms.log.commit(reader, {partition: (said[3].position, Tally(applied=applied))})
    assert (await rooms.ledger(rooms.operator)).imbalance == 2


async def test_the_feed_of_this_process_balances(rooms: Rooms) -> None:
    for i in range(20):
        await rooms.say(f"iotsphere/devices/d{i}/telemetry", {"n": i})
        await rooms.say(f"iotsphere/devices/d{i}/shadow/reported", {"n": i})
    await rooms.feed.save()
    report = await rooms.ledger(rooms.operator)
    assert report.imbalance == 0
    mine = account(report, "iotsphere/last-values", "telemetry")
    assert (mine.accepted, mine.applied, mine.pending) == (20, 20, 0)


async def test_a_work_queue_is_accounted_for(rooms: Rooms) -> None:
    said = [await rooms.say(TOPIC, {"n": i}) for i in range(10)]
    partition = said[0].record.partition
    await rooms.queue.create("iotsphere/workers", [(partition, said[1].position)])
    taken = await rooms.queue.take("iotsphere/workers", "one", 5)
    await rooms.queue.ack("iotsphere/workers", [(partition, one.entry.position) for one in taken[:3]])
    report = await rooms.ledger(rooms.operator)
    mine = account(report, "iotsphere/workers", "telemetry")
    assert (mine.kind, mine.accepted, mine.applied, mine.pending, mine.lost) == ("group", 8, 3, 5, 0)
    await rooms.log.retain(partition, Retention(0, 0, 0, 0), rooms.clock.now() + 1)
    await rooms.queue.take("iotsphere/workers", "one", 5)
    report = await rooms.ledger(rooms.operator)
    mine = account(report, "iotsphere/workers", "telemetry")
    assert (mine.accepted, mine.applied, mine.pending, mine.lost, report.imbalance) == (8, 3, 0, 5, 0)


class _Queue:
    """A work queue that says what a test wants, while messages keep coming in."""

    def __init__(self, rooms: Rooms, backlog: Backlog) -> None:
        self.rooms = rooms
        self.answer = backlog

    async def groups(self, domain: str) -> list[str]:
        return [f"{domain}/workers"]

    async def backlog(self, group: str) -> list[Backlog]:
        assert group == "iotsphere/workers"
        await self.rooms.say(TOPIC, {"more": True})
        return [self.answer]


@pytest.mark.parametrize(
    ("waiting", "imbalance"),
    [(5, 0), (6, 0), (4, 1), (7, -1)],
)
async def test_a_queue_whose_driver_knows_its_start_is_checked_against_the_log(
    rooms: Rooms, waiting: int, imbalance: int
) -> None:
    said = [await rooms.say(TOPIC, {"n": i}) for i in range(9)]
    # Ten are in the log when its end is first looked at, eleven after the second look at the queue.
    place: Partition = said[0].record.partition
    backlog = Backlog(place, waiting, 1, 2, 0, start=2)
    ledger = Ledger(rooms.log, _Queue(rooms, backlog), rooms.documents, rooms.dead_letters)  # type: ignore[arg-type]  # two of its methods
    report = await ledger.of_domain("iotsphere")
    assert account(report, "iotsphere/workers", "telemetry").imbalance == imbalance


async def test_dead_letters_are_shown_by_reason(rooms: Rooms) -> None:
    await rooms.refuse(TOPIC, b"{")
    await rooms.refuse(TOPIC, b"{")
    assert (await rooms.ledger(rooms.operator)).dead_letters == {"payload_not_json": 2}


async def test_a4_the_ledger_is_for_operators_and_shows_their_domain_only(rooms: Rooms) -> None:
    await rooms.say("other/devices/d1/telemetry", {"n": 1})
    report = await rooms.ledger(rooms.operator)
    assert (report.domain, sum(one.accepted for one in report.channels)) == ("iotsphere", 0)
    assert {one.reader.partition("/")[0] for one in report.readers} == {"iotsphere"}
    with pytest.raises(NotFound):
        await rooms.ledger(replace(rooms.operator, roles=frozenset()))
