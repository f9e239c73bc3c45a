"""The stored form of a record: nothing is lost in it, any damage shows, and it stays as it is."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.adapters.record import CorruptRecord, Packed, pack, unpack
from iotsphere.entities.message import Entry, Record
from iotsphere.entities.position import Partition, Position

PARTITION = Partition("iotsphere", "telemetry", 3)
POSITION = Position(1_767_225_600, 42)
int64 = st.integers(-(2**63), 2**63 - 1)
# A text of 65,535 bytes at most, as the layout has it.
texts = st.text(st.characters(codec="utf-8"), max_size=200)
records = st.builds(
    Record,
    st.just(PARTITION),
    texts,
    texts,
    st.binary(max_size=2_000),
    int64,
    int64,
    st.booleans(),
    st.booleans(),
    st.integers(0, 2),
)


@given(records, int64)
def test_what_was_packed_is_unpacked(record: Record, appended_at: int) -> None:
    assert unpack(pack(record, appended_at), PARTITION, POSITION) == (POSITION, appended_at, record)


@given(records, int64, st.data())
def test_a_flipped_bit_is_noticed(record: Record, appended_at: int, data: st.DataObject) -> None:
    stored = bytearray(pack(record, appended_at))
    bit = data.draw(st.integers(0, len(stored) * 8 - 1))
    stored[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptRecord, match="iotsphere/telemetry/3 1767225600-42"):
        unpack(bytes(stored), PARTITION, POSITION)


@given(records, st.data())
def test_a_cut_or_longer_value_is_noticed(record: Record, data: st.DataObject) -> None:
    stored = pack(record, 0)
    end = data.draw(st.integers(0, len(stored) - 1))
    for wrong in (stored[:end], stored + b"\0", b""):
        with pytest.raises(CorruptRecord):
            unpack(wrong, PARTITION, POSITION)


def test_an_unknown_format_is_refused() -> None:
    rest = b"\x02" + pack(Record(PARTITION, "t", "i", b"", 0), 0)[5:]
    with pytest.raises(CorruptRecord, match="unknown record format 2"):
        unpack(struct.pack("<I", zlib.crc32(rest)) + rest, PARTITION, POSITION)


def test_the_layout_stays() -> None:
    """What was written years ago must be readable: change the format number, never the layout."""
    record = Record(PARTITION, "a/topic", "an id", '{"é":1}'.encode(), 1, 2, True, True)
    stored = pack(record, 3)
    assert stored[4:] == (
        b"\x01\x03"
        b"\x03\0\0\0\0\0\0\0" b"\x01\0\0\0\0\0\0\0" b"\x02\0\0\0\0\0\0\0"
        b"\x05\0" b"\x07\0" b"an id" b"a/topic"
    ) + record.body  # fmt: skip
    assert stored[:4] == struct.pack("<I", zlib.crc32(stored[4:]))


@pytest.mark.parametrize(("message_id", "topic"), [("x" * 65_536, "t"), ("i", "x" * 65_536)])
def test_texts_beyond_the_layout_are_refused(message_id: str, topic: str) -> None:
    with pytest.raises(struct.error):
        pack(Record(PARTITION, topic, message_id, b"", 0), 0)


@given(st.lists(records, max_size=8), st.sampled_from(("", "a", "b")), st.integers(-5, 5))
def test_what_is_passed_on_is_what_taking_apart_would_choose(kept: list[Record], letter: str, now: int) -> None:
    # Few topics and times, so that some of each kind are there.
    kept = [one._replace(topic=one.topic[:1], expires_at=one.expires_at % 9) for one in kept]
    packed = Packed(PARTITION, POSITION, [pack(one, 7) for one in kept])
    entries = [Entry(Position(POSITION.epoch, POSITION.offset + place), 7, one) for place, one in enumerate(kept, 1)]
    assert packed == entries
    assert entries == packed
    assert packed != [*entries, *entries, None]

    def selects(topic: str) -> bool:
        return topic >= letter

    wanted = [one for one in entries if selects(one.record.topic)]
    late = [one for one in wanted if 0 < one.record.expires_at <= now]
    rest = [one for one in wanted if one not in late]
    for again in (packed, packed.select(lambda _: True, 0)[0]):
        chosen, expired = again.select(selects, now)
        assert (list(chosen), list(expired)) == (rest, late)
        assert len(chosen) == len(rest)
        assert chosen[1:] == rest[1:]
        assert list(chosen.bodies()) == [one.record.body for one in rest]
        assert list(chosen.positions()) == [one.position for one in rest]
    assert list(packed.positions()) == [one.position for one in entries]
    assert list(packed.bodies()) == [one.record.body for one in entries]
