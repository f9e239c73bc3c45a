"""Payloads: canonical or refused, the shortcuts agree with the exact parser, and no bytes can crash either."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iotsphere.adapters import payload, strict_json
from iotsphere.adapters.payload import Payload, canonical, decoder_of, read, read_exactly, read_json
from iotsphere.adapters.strict_json import MAX_GOOD_KEYS
from iotsphere.entities.dead_letter import REASONS
from iotsphere.entities.errors import MessageRefused
from tests.support.examples import tried

from .json_texts import CLEAN_TEXTS, DENSE, TEXTS, faults, has_twin, mutated

ANYTHING = st.one_of(mutated(), TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")), DENSE, st.binary())


def outcome(reader: Callable[[bytes], Payload], raw: bytes) -> tuple[str, object]:
    """The canonical bytes, or the reason."""
    try:
        return "accepted", reader(raw).canonical
    except MessageRefused as error:
        refusal = error
    assert refusal.code in REASONS
    assert refusal.message.isprintable()
    return "refused", (refusal.code, refusal.message)


@tried(100)
@example(b'{"a":-0.0,"b":-0.05}')
@example(b'{"a":"\\u0022","b":1,"b":2}')
@example(b'{"a":1,"a":"\\u0022\\u0022"}')
@example(b'{"a":"\\"","a":"\\"\\""}')
@example(b'{"a\\"":1,"b":"\\"","b":""}')
@example(b'{"a":"\\\\","a":"\\""}')
@example(b'"{"')
@example(b"[1700000000000000000]")
@given(ANYTHING)
def test_the_shortcuts_and_the_exact_parser_agree(raw: bytes) -> None:
    assert outcome(read_json, raw) == outcome(read_exactly, raw)


@tried(100)
@given(ANYTHING)
def test_refused_exactly_when_the_standard_library_finds_a_fault(raw: bytes) -> None:
    kind, result = outcome(read_json, raw)
    if payload._PLAIN_NUMBER.match(raw):
        return
    expected = faults(raw)
    if kind == "accepted":
        assert expected == set()
    else:
        assert isinstance(result, tuple)
        assert result[0] in expected


@tried(100)
@given(CLEAN_TEXTS)
def test_a_key_given_twice_is_found_exactly(text: str) -> None:
    kind, result = outcome(read_json, text.encode())
    if has_twin(text):
        assert isinstance(result, tuple)
        assert result[0] == "json_duplicate_key"
    else:
        assert kind == "accepted"


@tried(100)
@given(CLEAN_TEXTS)
def test_what_is_accepted_means_the_same(text: str) -> None:
    if has_twin(text):
        return
    value, raw = read_json(text.encode())
    meant = json.loads(text)
    if isinstance(meant, list):
        meant = {"samples": meant}
    elif not isinstance(meant, dict):
        meant = {"value": meant}
    assert value == meant
    assert json.loads(raw) == meant
    assert canonical(raw) == raw


def _negative_zeros(value: object) -> bool:
    if isinstance(value, float):
        return value == 0 and math.copysign(1, value) < 0
    if isinstance(value, dict):
        return any(map(_negative_zeros, value.values()))
    return isinstance(value, list) and any(map(_negative_zeros, value))


@given(ANYTHING)
def test_canonical_is_a_fixed_point(raw: bytes) -> None:
    kind, result = outcome(read, raw)
    if kind == "accepted":
        assert isinstance(result, bytes)
        value = orjson.loads(result)
        assert isinstance(value, dict)
        assert not _negative_zeros(value)
        assert canonical(result) == result


ACCEPTED = {
    b"21.5": b'{"value":21.5}',
    b"-085": b'{"value":-85}',
    b"+007": b'{"value":7}',
    b" 20.0\r\n": b'{"value":20.0}',
    b"1e3": b'{"value":1000.0}',
    b"-0": b'{"value":0}',
    b"-0.0": b'{"value":0.0}',
    b"true": b'{"value":true}',
    b"null": b'{"value":null}',
    b'"ON"': b'{"value":"ON"}',
    b"[]": b'{"samples":[]}',
    b'[{"ts":1,"value":2}, 3]': b'{"samples":[{"ts":1,"value":2},3]}',
    b"{}": b"{}",
    b' {"b" : 1 , "a" : [ ] } ': b'{"b":1,"a":[]}',
    b'{"unit":"\\u00b0C"}': '{"unit":"\u00b0C"}'.encode(),
    b'{"a":"\\ud83d\\ude00"}': '{"a":"\U0001f600"}'.encode(),
    b'{"a":"x\\u0000y\\u001b"}': b'{"a":"x\\u0000y\\u001b"}',
    b'{"a":-1e-400}': b'{"a":0.0}',
    b'{"a":"$acl.role"}': b'{"a":"$acl.role"}',
    b'{"SHT3X-0x45":{"Temperature":23.6}}': b'{"SHT3X-0x45":{"Temperature":23.6}}',
    b"[" * 32 + b"]" * 32: b'{"samples":' + b"[" * 32 + b"]" * 32 + b"}",
    b'{"a":' * 32 + b"1" + b"}" * 32: b'{"a":' * 32 + b"1" + b"}" * 32,
    b"[" + b"0," * 999 + b"0]": b'{"samples":[' + b"0," * 999 + b"0]}",
    b"0" * 64: b'{"value":0}',
}  # fmt: skip

REFUSED = {
    b"": "payload_not_json",
    b" ": "payload_not_json",
    b"21,5": "payload_not_json",
    b"21.5 C": "payload_not_json",
    b"1.": "payload_not_json",
    b".5": "payload_not_json",
    b"1\x00": "payload_not_json",
    b"0x1F": "payload_not_json",
    b"1 2": "payload_not_json",
    b"ON": "payload_not_json",
    b"{": "payload_not_json",
    b'{"a":1,}': "payload_not_json",
    b"{'a':1}": "payload_not_json",
    b'{"a":01}': "payload_not_json",
    b'{"a":1}{"b":2}': "payload_not_json",
    b'\xef\xbb\xbf{"a":1}': "payload_not_json",
    b'{"a":"x\ny"}': "payload_not_json",
    b"\xff": "payload_not_utf8",
    b'{"a":"\xed\xa0\x80"}': "payload_not_utf8",
    b'{"a":"\xc0\x80"}': "payload_not_utf8",
    b'{"a":1,"a":1}': "json_duplicate_key",
    b'{"a":1,"\\u0061":2}': "json_duplicate_key",
    b'{"x":[{"a":1,"a":2}]}': "json_duplicate_key",
    b"[" * 33 + b"]" * 33: "json_too_deep",
    b'{"a":' * 33 + b"1" + b"}" * 33: "json_too_deep",
    b"[" * 200_000: "json_too_deep",
    b'{"a":' * 50_000: "json_too_deep",
    b"NaN": "number_not_finite",
    b"-inf": "number_not_finite",
    b'{"t":nan}': "number_not_finite",
    b'{"t":-Infinity}': "number_not_finite",
    b'{"t":1e400}': "number_not_finite",
    b"1e400": "number_not_finite",
    b'{"a":9223372036854775808}': "int_out_of_range",
    b'{"a":-9223372036854775809}': "int_out_of_range",
    b"18446744073709551616": "int_out_of_range",
    b"9" * 65: "number_too_long",
    b'{"a":0.' + b"1" * 63 + b"}": "number_too_long",
    b'{"a":' + b"9" * 100_000 + b"}": "number_too_long",
    b'{"a":"\\ud800"}': "invalid_string",
    b'{"\\ude00":1}': "invalid_string",
    b'{"":1}': "key_not_allowed",
    b'{"$set":{}}': "key_not_allowed",
    b'{"a.b":1}': "key_not_allowed",
    b'{"a\\u0000":1}': "key_not_allowed",
    b'{"a\x7f":1}': "key_not_allowed",
    '{"a\u0085":1}'.encode(): "key_not_allowed",
    b'{"x":{"__proto__":1}}': "key_not_allowed",
    b'[{"constructor":1}]': "key_not_allowed",
    b'{"prototype":1}': "key_not_allowed",
    b'{"' + b"x" * 129 + b'":1}': "key_not_allowed",
    b"[" + b"0," * 1_000 + b"0]": "schema_violation",
    b'{"samples":[' + b"0," * 1_000 + b"0]}": "schema_violation",
    # Strict JSON comes before the key rules, whatever stands first.
    b'{"$a":1,"b":NaN}': "number_not_finite",
    b'{"a.b":1,"c":1,"c":2}': "json_duplicate_key",
}  # fmt: skip


@pytest.mark.parametrize("raw", ACCEPTED, ids=lambda raw: repr(raw[:30]))
def test_accepted(raw: bytes) -> None:
    assert canonical(raw) == ACCEPTED[raw]


@pytest.mark.parametrize("raw", REFUSED, ids=lambda raw: repr(raw[:30]))
def test_refused(raw: bytes) -> None:
    with pytest.raises(MessageRefused) as caught:
        canonical(raw)
    assert caught.value.code == REFUSED[raw]
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b'{"a":1,"a":2}', "'a'"),
        (b'{"a":}', "byte 5, '}'"),
        ('["\u00e4",x]'.encode(), "byte 6, 'x'"),
        (b"[1,2", "ends too early"),
        (b'{"a":"\xff"}', "byte 6"),
        (b'{"a":[1e999]}', "1e999"),
        (b"[9223372036854775808]", "9223372036854775808"),
        (b'{"a":{"$b":1}}', "'$b'"),
        (b'{"' + b"\x7f" * 500 + b'":1}', "128 characters"),
    ],
)
def test_a_refusal_says_what_and_where(raw: bytes, told: str) -> None:
    with pytest.raises(MessageRefused) as caught:
        canonical(raw)
    assert told in caught.value.message
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    "hostile",
    [
        b'"' * 262_144,
        b'"\\"' * 87_000,
        b'["' + b"\\" * 262_001 + b'"]',
        b"[" + b'"\\u0022",' * 26_000 + b"1",
        b'{"a":' + b" " * 262_000,
        b"-" * 262_144,
        b"1" * 262_144,
        b"[" + b"1," * 131_000,
        b"{" + b'"a":1,' * 43_000,
        b"\\" * 262_144,
    ],
    ids=lambda raw: repr(raw[:12]),
)
def test_a_hostile_payload_of_full_size_is_refused(hostile: bytes) -> None:
    with pytest.raises(MessageRefused):
        canonical(hostile)


def test_hostile_keys_do_not_fill_the_memory() -> None:
    for number in range(MAX_GOOD_KEYS + 100):
        canonical(b'{"key-%d":1}' % number)
    assert len(strict_json._GOOD_KEYS) <= MAX_GOOD_KEYS
    assert canonical(b'{"temperature":1}') == b'{"temperature":1}'


@pytest.mark.parametrize(
    "declared",
    ["application/json", "Application/JSON; charset=UTF-8", 'text/json;charset="utf-8"', "application/senml+json"],
)
def test_declared_json_is_read(declared: str) -> None:
    assert canonical(b'{"a": 1}', declared) == b'{"a":1}'


def test_declared_text_must_be_a_number() -> None:
    assert canonical(b" 21.50\n", "text/plain") == b'{"value":21.5}'
    for raw, reason in ((b'{"a":1}', "payload_not_json"), (b"nan", "number_not_finite"), (b"\xff", "payload_not_utf8")):
        with pytest.raises(MessageRefused) as caught:
            canonical(raw, "text/plain")
        assert caught.value.code == reason


@pytest.mark.parametrize(
    "declared",
    [
        "",
        "json",
        "application/cbor",
        "application/json; charset=latin-1",
        "application/json\r\nX: y",
        "a/" + "b" * 200,
        "\u00e4/b",
    ],
)
def test_other_content_types_have_no_decoder(declared: str) -> None:
    with pytest.raises(MessageRefused) as caught:
        decoder_of(declared)
    assert caught.value.code == "unknown_codec"
    assert caught.value.message.isprintable()
