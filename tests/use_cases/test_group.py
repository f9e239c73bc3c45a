"""Readers with the same filters: live in every partition of theirs, but for those that fell behind there."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from iotsphere.entities.position import Gap, Partition
from iotsphere.use_cases.ports.message_log import Slice
from tests.use_cases.stage import DOMAIN, RecordingSink, Stage, open_stage

TELEMETRY = f"{DOMAIN}/devices/+/telemetry/#"
COMMANDS = f"{DOMAIN}/devices/+/commands/request"


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with open_stage(partitions=2) as opened:
        yield opened


async def test_who_falls_behind_in_one_partition_is_live_in_the_others_until_it_is_back(stage: Stage) -> None:
    one, two = [await stage.open(RecordingSink(), TELEMETRY) for _ in range(2)]
    group = one.group
    assert group is two.group
    first, second = group.partitions
    assert list(group.live(first)) == [one, two]
    group.fall_behind(one, (first,))
    assert (list(group.live(first)), list(group.live(second))) == ([two], [one, two])
    group.go_live(one, (first,))
    assert list(group.live(first)) == [one, two]


async def test_who_has_joined_is_handed_nothing_before_it_begins(stage: Stage) -> None:
    reader = await stage.open(RecordingSink(), TELEMETRY)
    group = reader.group
    group.fall_behind(reader, group.partitions)
    assert [list(group.live(partition)) for partition in group.partitions] == [[], []]
    reader.close()
    assert not group.readers


async def test_a_gap_is_told_only_where_its_partition_is_read(stage: Stage) -> None:
    telemetry, commands = RecordingSink(), RecordingSink()
    await stage.open(telemetry, TELEMETRY)
    await stage.open(commands, COMMANDS)
    partition = Partition(DOMAIN, "telemetry", 0)
    at = stage.feed.positions[partition]
    gap = Gap(partition, at.offset + 1, at.offset + 3, "retention")
    stage.feed.dispatch(Slice(partition, [], at._replace(offset=at.offset + 3), gap))
    assert (telemetry.gaps, commands.gaps) == ([gap], [])
