"""Cursors on the wire: back and forth, and worthless when altered or taken elsewhere."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.adapters.cursor import MAX_CURSOR_CHARACTERS, decode, encode, sign, vector
from iotsphere.entities.channel import DEFAULT_CHANNELS
from iotsphere.entities.cursor import Cursor, scope_of
from iotsphere.entities.errors import CursorInvalid
from iotsphere.entities.position import Partition, Position
from tests.support.examples import tried

KEY = bytes(range(32))
SCOPE = scope_of("iotsphere/user/u1", ["iotsphere/devices/+/telemetry/#"])

partitions = st.builds(
    Partition,
    st.sampled_from(("iotsphere", "acme", "d" * 64)),
    st.sampled_from(("telemetry", "shadow", "commands", "users", "system", "batch", "later", "\u00e4")),
    st.integers(0, 300),
)
positions = st.dictionaries(
    partitions, st.builds(Position, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)), max_size=20
)
scopes = st.text(alphabet=st.characters(codec="utf-8"), max_size=20)


@given(scopes, positions)
def test_a_cursor_comes_back_as_it_was(scope: str, vectors: dict[Partition, Position]) -> None:
    cursor = Cursor(scope, vectors)
    text = encode(cursor, KEY)
    assert decode(text, scope, KEY) == cursor
    assert text == sign(vector(dict(reversed(vectors.items()))), scope, KEY)
    assert text.isascii()
    assert text.replace("-", "").replace("_", "").isalnum()


@tried(100)
@given(positions, st.data())
def test_an_altered_cursor_is_refused(vectors: dict[Partition, Position], data: st.DataObject) -> None:
    text = encode(Cursor(SCOPE, vectors), KEY)
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 2))
    put = data.draw(st.text(alphabet="ABCabc019-_=+/\u00e9 \n", max_size=2))
    altered = text[:at] + put + text[at + cut :]
    if altered != text:
        with pytest.raises(CursorInvalid):
            decode(altered, SCOPE, KEY)


@given(positions, scopes)
def test_a_cursor_is_bound_to_its_scope_and_key(vectors: dict[Partition, Position], other: str) -> None:
    text = encode(Cursor(SCOPE, vectors), KEY)
    with pytest.raises(CursorInvalid):
        decode(text, other, KEY)
    with pytest.raises(CursorInvalid):
        decode(text, SCOPE, KEY[::-1])


@pytest.mark.parametrize(
    "text", ["", "A", "AAAA", "not a cursor", "A" * 22, "=" * 24, "A" * (MAX_CURSOR_CHARACTERS + 1), "\u0661" * 24]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(CursorInvalid) as caught:
        decode(text, SCOPE, KEY)
    assert caught.value.code == "cursor_invalid"


@given(st.binary(max_size=40))
def test_even_a_signed_vector_is_read_with_care(written: bytes) -> None:
    text = sign(written, SCOPE, KEY)
    try:
        cursor = decode(text, SCOPE, KEY)
    except CursorInvalid:
        return
    assert len(cursor.positions) <= len(written)


def test_the_scope_cannot_be_moved_into_the_vector() -> None:
    written = vector({Partition("a", "telemetry", 0): Position(1, 2)})
    text = sign(written, "xyz", KEY)
    signature = urlsafe_b64decode(text + "==")[:16]
    moved = urlsafe_b64encode(signature + written + b"x").rstrip(b"=").decode()
    with pytest.raises(CursorInvalid):
        decode(moved, "yz", KEY)


def test_eleven_partitions_fit_into_two_hundred_characters() -> None:
    vectors = {
        Partition("iotsphere", channel, number): Position(7, 10**12 + number)
        for channel, spec in DEFAULT_CHANNELS.items()
        for number in range(spec.partitions)
    }
    assert len(vectors) == 11
    assert len(encode(Cursor(SCOPE, vectors), KEY)) <= 200


def test_the_form_never_changes() -> None:
    cursor = Cursor(
        "s",
        {
            Partition("iotsphere", "telemetry", 0): Position(1, 300),
            Partition("iotsphere", "telemetry", 1): Position(1, 0),
            Partition("iotsphere", "batch", 0): Position(3, 5),
        },
    )
    written = vector(cursor.positions)
    assert written == b"\x01\x09iotsphere\x03" + b"\x05\x00\x06\x05" + b"\x00\x00\x03\xac\x02" + b"\x00\x01\x00\x00"
    signature = blake2b(b"%d:" % len(written) + written + b"s", key=KEY, digest_size=16).digest()
    assert encode(cursor, KEY) == urlsafe_b64encode(signature + written).rstrip(b"=").decode()


@pytest.mark.parametrize("key", [b"", b"short", b"k" * 65])
def test_a_weak_key_is_refused(key: bytes) -> None:
    with pytest.raises(ValueError, match="key"):
        sign(b"", SCOPE, key)


def test_negative_positions_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        vector({Partition("a", "telemetry", 0): Position(0, -1)})
