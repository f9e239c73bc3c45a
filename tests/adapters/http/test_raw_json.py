"""A JSON text is cut where its members end, for any text, and its pieces are the sender's bytes."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.adapters.http import raw_json
from iotsphere.entities.errors import RequestInvalid

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
SPACE = st.text(" \t\r\n", max_size=3)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), VALUES, max_size=6), st.booleans())
def test_the_pieces_of_an_object_are_its_members(value: dict[str, object], ascii_only: bool) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    found = raw_json.members(raw, "it")
    assert list(found) == list(value)
    assert b", ".join(
        json.dumps(key, ensure_ascii=ascii_only).encode() + b": " + piece for key, piece in found.items()
    ) == raw[1:-1]  # fmt: skip


@given(st.lists(VALUES, max_size=6), SPACE, SPACE)
def test_the_pieces_of_an_array_are_its_items(value: list[object], before: str, between: str) -> None:
    texts = [json.dumps(item) for item in value]
    raw = before + "[" + between + f"{between},{before}".join(texts) + before + "]" + between
    assert raw_json.items(raw.encode(), "it") == [text.encode() for text in texts]


@given(st.binary(max_size=60) | st.text('{}[],:"\\ ax1', max_size=40).map(str.encode))
def test_no_bytes_at_all_do_more_than_being_refused(raw: bytes) -> None:
    for cut in (raw_json.members, raw_json.items):
        with suppress(RequestInvalid):
            pieces = cut(raw, "it")
            assert sum(len(piece) for piece in pieces) < len(raw)


@pytest.mark.parametrize(
    "raw",
    [b'{"a":"' + b"\\" * 1_000_000, b'{"a":"' + b'\\"' * 500_000, b"[" * 1_000_000, b'{"a":' * 200_000,
     b'["' * 500_000, b"{" + b"," * 1_000_000 + b"}", b"[" + b"[]," * 300_000 + b"1]", b'{"' + b"x" * 1_000_000],
)  # fmt: skip
def test_hostile_megabytes_are_refused_in_one_pass(raw: bytes) -> None:
    for cut in (raw_json.members, raw_json.items):
        with pytest.raises(RequestInvalid):
            cut(raw, "it")
