"""Partitions and positions: hashing that must never change, order, and the size of gaps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.entities.channel import DEFAULT_CHANNELS
from iotsphere.entities.position import Gap, Partition, Position, partition_index
from iotsphere.entities.topic import CHANNELS

# (key, partitions) -> index. A change here would break the FIFO of every key that is stored already.
GOLDEN = {
    ("", 4): 0,
    ("d1", 4): 2,
    ("d1", 2): 0,
    ("dev-01", 4): 0,
    ("a0:b1:c2:d3:e4:f5", 4): 1,
    ("iotsphere/system/status", 8): 6,
    ("\u00fc", 7): 4,
}


@pytest.mark.parametrize(("key", "count"), GOLDEN)
def test_the_partition_of_a_key_never_changes(key: str, count: int) -> None:
    assert partition_index(key, count) == GOLDEN[key, count]


@given(st.text(alphabet=st.characters(codec="utf-8")), st.integers(1, 64))
def test_every_key_has_a_partition(key: str, count: int) -> None:
    assert 0 <= partition_index(key, count) < count


def test_keys_spread_over_all_partitions() -> None:
    counts = [0] * 8
    for number in range(8_000):
        counts[partition_index(f"device-{number}", 8)] += 1
    assert min(counts) > 700


def test_positions_order_by_epoch_then_offset() -> None:
    assert sorted([Position(2, 0), Position(1, 9), Position(1, 10)]) == [
        Position(1, 9),
        Position(1, 10),
        Position(2, 0),
    ]


@pytest.mark.parametrize(("first", "last", "missing"), [(1, 1, 1), (3, 7, 5), (8, 7, 0), (9, 0, 0)])
def test_a_gap_counts_both_ends(first: int, last: int, missing: int) -> None:
    assert Gap(Partition("a", "telemetry", 0), first, last, "retention").missing == missing


def test_every_channel_is_made_with_partitions() -> None:
    assert tuple(DEFAULT_CHANNELS) == CHANNELS
    assert all(spec.partitions >= 1 for spec in DEFAULT_CHANNELS.values())
    assert all(
        spec.retention.max_age <= spec.retention.hard_age and spec.retention.max_bytes <= spec.retention.hard_bytes
        for spec in DEFAULT_CHANNELS.values()
    )


def test_a_partition_reads_as_a_path() -> None:
    assert str(Partition("iotsphere", "telemetry", 3)) == "iotsphere/telemetry/3"
