"""The stored form of last values: what was written comes back, and nothing else is taken for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.adapters.record import CorruptRecord
from iotsphere.adapters.values import pack_values, unpack_values
from iotsphere.entities.message import Entry, Record
from iotsphere.entities.position import Partition, Position
from iotsphere.use_cases.last_values import Values

ENTRIES = st.builds(
    Entry,
    st.builds(Position, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)),
    st.integers(0, 2**62),
    st.builds(
        Record,
        st.builds(Partition, st.just("iotsphere"), st.sampled_from(["telemetry", "system"]), st.integers(0, 65_535)),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
        st.binary(max_size=300),
        st.integers(-(2**62), 2**62),
        st.integers(0, 2**62),
        st.booleans(),
        st.booleans(),
        st.integers(0, 2),
    ),
)


@given(ENTRIES, ENTRIES)
def test_values_come_back(last: Entry, retained: Entry) -> None:
    for values in (Values(last, None), Values(last, last), Values(last, retained)):
        assert unpack_values("iotsphere", pack_values(values)) == values


@given(ENTRIES)
def test_one_entry_that_is_both_is_stored_once(last: Entry) -> None:
    assert len(pack_values(Values(last, last))) == len(pack_values(Values(last, None)))
    found = unpack_values("iotsphere", pack_values(Values(last, last)))
    assert found.retained is found.last


@given(ENTRIES, st.data())
def test_a_changed_record_is_noticed(last: Entry, data: st.DataObject) -> None:
    stored = bytearray(pack_values(Values(last, None)))
    start = 1 + stored[0] + 23  # the head beside the record carries no checksum of its own
    place = data.draw(st.integers(start, len(stored) - 1))
    stored[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptRecord):
        unpack_values("iotsphere", bytes(stored))
