"""Bodies of documents as people may have written them: read whatever they are, with what had to be replaced said."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.adapters.database.body import MAX_INT64, NO_OBJECT, decode, encode, is_text_of, next_revision, read

WHOLE = st.characters(codec="utf-8")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(WHOLE),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(WHOLE), inner),
    max_leaves=10,
)  # fmt: skip


@given(st.dictionaries(st.text("abc", min_size=1), JSON))
def test_what_is_json_is_read_as_it_is(body: dict[str, object]) -> None:
    assert read(json.dumps(body)) == (body, "")


@pytest.mark.parametrize(
    ("text", "body", "lost"),
    [
        ('{"a":1e999,"b":[-1e999]}', {"a": None, "b": [None]}, "a number that is not finite"),
        (r'{"a":"x\ud800y","\udfff":1}', {"a": "x\ufffdy", "\ufffd": 1}, "half a surrogate pair"),
        (r'{"a":"\ud83d\ude00","b":1e999}', {"a": "\U0001f600", "b": None}, "a number that is not finite"),
        (b'{"a":"\xff"}', {"a": "\ufffd"}, "damaged text"),
        ('{"a":NaN}', {"a": None}, "a number that is not finite"),
        ('{"a":%s}' % ("9" * 5_000), {"a": None}, "a number that is not finite"),
        ("[1]", {}, NO_OBJECT),
        ("{", {}, NO_OBJECT),
        ('{"a":' * 5_000 + "1" + "}" * 5_000, {}, NO_OBJECT),
    ],
)
def test_what_no_body_may_hold_is_replaced_and_said(text: str | bytes, body: object, lost: str) -> None:
    assert read(text) == (body, lost)
    assert decode(text) == body


def test_what_nests_too_deep_to_be_written_again_is_cut() -> None:
    body, lost = read('{"a":' * 500 + "1" + "}" * 500)
    depth = 0
    while body is not None:
        body = body["a"]
        depth += 1
    assert (depth, lost) == (64, "what nests deeper than 64 levels")
    wide = encode({"a": [{} for _ in range(1_000)]})
    assert read(wide)[1] == ""


def test_a_mended_body_stands_for_its_text() -> None:
    text = b'{"a":1e999}'
    assert is_text_of(text, decode(text))
    assert not is_text_of(text, {"a": 1})


def test_nothing_is_beyond_the_last_revision() -> None:
    assert (next_revision(1), next_revision(MAX_INT64)) == (2, 1)
