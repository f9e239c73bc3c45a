"""Message ids: unique, sorted by time, of one spelling."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.adapters.message_id import MessageIds, derived, is_message_id, minted_at

NOW = 1_767_225_600_000


@given(st.integers(0, 2**48 - 1))
def test_a_minted_id_is_a_uuid_that_carries_its_time(time: int) -> None:
    text = MessageIds().mint(time)
    parsed = uuid.UUID(text)
    assert str(parsed) == text
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert minted_at(text) == time
    assert is_message_id(text)


def test_ids_of_one_source_never_repeat_and_sort_by_time_then_order() -> None:
    ids = MessageIds()
    minted = [ids.mint(NOW + number // 10_000) for number in range(50_000)]
    assert len(set(minted)) == len(minted)
    assert minted == sorted(minted)


def test_ids_stay_unique_when_the_clock_goes_back() -> None:
    ids = MessageIds()
    minted = [ids.mint(NOW - number % 3) for number in range(20_000)]
    assert len(set(minted)) == len(minted)


def test_two_sources_do_not_meet() -> None:
    one, two = MessageIds(), MessageIds()
    assert not {one.mint(NOW) for _ in range(10_000)} & {two.mint(NOW) for _ in range(10_000)}


@pytest.mark.parametrize(
    "text",
    ["", "00000000-0000-4000-8000-0000000000C3", "00000000000040008000000000000000", "{00000000-0000-4000-8000-0000000000c3}",
     "00000000-0000-4000-8000-0000000000c3\n", "urn:uuid:00000000-0000-4000-8000-0000000000c3",
     "00000000-0000-4000-8000-0000000000c", "g0000000-0000-4000-8000-0000000000c3",
     "\u0660\u0660000000-0000-4000-8000-0000000000c3"],
)  # fmt: skip
def test_other_spellings_are_no_ids(text: str) -> None:
    assert not is_message_id(text)
    assert minted_at(text) is None


@given(st.uuids(), st.uuids(version=4))
def test_uuids_in_lower_case_are_ids(one: uuid.UUID, random: uuid.UUID) -> None:
    assert is_message_id(str(one))
    assert minted_at(str(random)) is None


@given(st.binary(min_size=16, max_size=16))
def test_a_derived_id_follows_from_its_bytes(digest: bytes) -> None:
    parsed = uuid.UUID(derived(digest))
    assert derived(digest) == derived(digest) == str(parsed)
    assert (parsed.version, parsed.variant) == (8, uuid.RFC_4122)


def test_a_derived_id_is_golden() -> None:
    assert derived(bytes(range(16))) == "00010203-0405-8607-8809-0a0b0c0d0e0f"
    assert derived(b"\xff" * 16) == "ffffffff-ffff-8fff-bfff-ffffffffffff"
    with pytest.raises(ValueError, match="16 bytes"):
        derived(b"short")
