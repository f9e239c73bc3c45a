"""Requests are read strictly and refused with their ref; answers and times are written exactly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.adapters.client import protocol
from iotsphere.entities.errors import IotSphereError, MessageRefused, RateLimited, RequestInvalid, VersionConflict
from iotsphere.entities.message import MAX_PAYLOAD_BYTES
from iotsphere.entities.position import Gap, Partition


def request(**members: object) -> bytes:
    return orjson.dumps({"type": "publish", "ref": 1, "topic": "t", **members})


def test_defaults() -> None:
    parsed = protocol.parse_request(b'{"type":"subscribe","ref":"r","filters":["a"]}')
    assert isinstance(parsed, protocol.Subscribe)
    assert (parsed.start, parsed.policy, parsed.max_rate, parsed.group, parsed.credit, parsed.cursors) == (
        "live",
        "complete",
        0.0,
        None,
        100,
        "frame",
    )


@pytest.mark.parametrize(
    ("raw", "ref", "says"),
    [
        (b'{"type":"subscribe","ref":7,"filters":[]}', 7, "filters"),
        (b'{"type":"subscribe","ref":"x","filters":"a"}', "x", "filters"),
        (b'{"type":"publish","ref":7,"topic":"a"}', 7, "either payload or message"),
        (b'{"type":"publish","ref":7,"topic":"a","message":{"metadata":{}}}', 7, "send anything else as payload"),
        (b'{"type":"command","ref":7,"device":"d","payload":[]}', 7, "payload"),
        (b'{"type":"command","ref":7,"device":"d","payload":{},"wait":301}', 7, "wait"),
        (b'{"type":"command","ref":7,"device":"d","payload":{},"idempotencyKey":""}', 7, "idempotencyKey"),
        (b'{"type":"cancel","ref":7}', 7, "command"),
        (b'{"type":"shadow","ref":7,"device":"d","version":-1}', 7, "version"),
        (b'{"type":"shadow","ref":7,"device":"d","version":1.0}', 7, "version"),
        (b'{"type":"shadow","ref":7,"device":"d","desired":[1]}', 7, "desired"),
        (b'{"type":"shadow","ref":7,"device":"d","expires":{"/a":1}}', 7, "expires"),
        (b'{"type":"read","ref":7,"notification":7}', 7, "notification"),
        (b'{"type":"dance","ref":7}', 7, "type"),
        (b'{"ref":7}', 7, "type"),
        (b'{"type":"ping"}', None, "ref"),
        (b'{"type":"ping","ref":true}', None, "ref"),
        (b'{"type":"ping","ref":null}', None, "ref"),
        (b'{"type":"ping","ref":"%b"}' % (b"x" * 200), "x" * 128, "128"),
        (b"[]", None, "JSON object"),
        (b"17", None, "JSON object"),
        (b"", None, "JSON object"),
    ],
)
def test_each_fault_is_named_and_keeps_the_ref(raw: bytes, ref: object, says: str) -> None:
    with pytest.raises(RequestInvalid) as refused:
        protocol.parse_request(raw)
    assert refused.value.facts.get("ref") == ref
    assert says in refused.value.message


@pytest.mark.parametrize(
    ("raw", "code", "facts"),
    [
        (b'{"type":"publish","ref":7,"topic":"t","payload":{"a":1,"a":2}}', "json_duplicate_key", (7, "t")),
        (b'{"type":"publish","ref":7,"topic":"t","payload":{"$a":1}}', "key_not_allowed", (7, "t")),
        (b'{"type":"publish","ref":7,"topic":"t","payload":1e999}', "number_not_finite", (7, "t")),
        (b'{"type":"publish","ref":7,"topic":"t","payload":99999999999999999999}', "int_out_of_range", (7, "t")),
        (b'{"type":"ping","ref":7,"a":{"a":1,"a":2}}', "json_duplicate_key", (7, None)),
        (b'{"type":"publish","ref":7', "payload_not_json", (None, None)),
        (b'\xff{"type"', "payload_not_utf8", (None, None)),
        (b"\xff\xfe", "payload_not_utf8", (None, None)),
    ],
)
def test_json_that_is_not_strict_keeps_ref_and_topic(raw: bytes, code: str, facts: tuple[object, object]) -> None:
    with pytest.raises(MessageRefused) as refused:
        protocol.parse_request(raw)
    assert refused.value.code == code
    known = refused.value.facts
    if code not in ("number_not_finite", "int_out_of_range"):
        assert (known.get("ref"), known.get("topic")) == facts


def test_a_payload_of_full_size_fits_into_a_request() -> None:
    payload = "x" * (MAX_PAYLOAD_BYTES - 12)
    parsed = protocol.parse_request(request(payload=payload))
    assert isinstance(parsed, protocol.Publish)
    assert parsed.payload == payload
    with pytest.raises(MessageRefused) as refused:
        protocol.parse_request(request(payload={"text": payload, "$where": 1}))
    assert refused.value.code == "key_not_allowed"
    with pytest.raises(RequestInvalid, match="split it"):
        protocol.parse_request(request(payload="x" * protocol.MAX_REQUEST_BYTES))


def refused(raw: bytes) -> IotSphereError | None:
    """The refusal of a request; any other exception is the test's failure."""
    try:
        protocol.parse_request(raw)
    except IotSphereError as error:
        return error
    return None


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parser(raw: bytes) -> None:
    refusal = refused(raw)
    assert refusal is None or refusal.message.isprintable()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
        max_leaves=10,
    ),
    st.sampled_from(
        ["subscribe", "unsubscribe", "publish", "command", "cancel", "shadow", "read", "ack", "auth", "ping", "x"]
    ),
)
def test_no_value_in_any_member_breaks_the_parser(value: object, kind: str) -> None:
    for member in (
        "ref", "filters", "from", "topic", "payload", "message", "deliveries", "token", "retryIn", "group",
        "device", "desired", "delete", "version", "expires", "asOf", "wait", "timeout", "idempotencyKey", "command",
        "notification", "user",
    ):  # fmt: skip
        try:
            raw = orjson.dumps({"type": kind, "ref": 1, member: value}, option=orjson.OPT_NON_STR_KEYS)
        except (TypeError, ValueError):
            return
        refusal = refused(raw)
        assert refusal is None or refusal.message.isprintable()


# Times


@given(st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30)), st.integers(-23 * 60, 23 * 60))
def test_iso_times_are_read_to_the_millisecond(moment: datetime, minutes: int) -> None:
    moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    zoned = moment.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    expected = (zoned - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    found = protocol.parse_time(zoned.isoformat())
    assert found is not None
    assert abs(found - max(0, expected)) <= 1
    plain = protocol.parse_time(moment.isoformat() + "Z")
    assert plain == protocol.parse_time(moment.isoformat())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1767225600000", 1_767_225_600_000),
        ("2026-01-01T00:00:00Z", 1_767_225_600_000),
        ("0001-01-01T00:00:00+23:59", 0),
        ("live", None),
        ("12345678", None),
        ("9" * 16, None),
        ("9" * 5_000, None),
        ("١٢٣٤٥٦٧٨٩", None),
        ("", None),
    ],
)
def test_other_texts_are_no_times(text: str, expected: int | None) -> None:
    assert protocol.parse_time(text) == expected


@pytest.mark.parametrize("text", ["2026-13-01T00:00:00Z", "2026-01-01Tnoon", "2026-01-01T25:00:00Z"])
def test_what_looks_like_a_time_and_is_none_is_refused(text: str) -> None:
    with pytest.raises(RequestInvalid, match="is no time"):
        protocol.parse_time(text)


# Answers


def test_answers() -> None:
    assert orjson.loads(protocol.ok("r", more=1)) == {"type": "ok", "ref": "r", "more": 1}
    assert orjson.loads(protocol.failed(None, RateLimited("wait", retry_after=0.0101))) == {
        "type": "error",
        "ref": None,
        "code": "rate_limited",
        "retry": True,
        "message": "wait",
        "retryAfter": 11,
    }
    assert protocol.gap_facts(Gap(Partition("iotsphere", "telemetry", 3), 4, 9, "retention")) == {
        "partition": "telemetry/3",
        "first": 4,
        "last": 9,
        "count": 6,
        "reason": "retention",
    }


def test_decisions_keep_integers_or_turn_those_beyond_browsers_into_texts() -> None:
    facts = {"n": 2**53, "big": 2**53 + 1, "list": [-(2**63), 1e300], "text": "90071992547409930"}
    shown = {**facts, "big": "9007199254740993", "list": ["-9223372036854775808", 1e300]}
    assert orjson.loads(protocol.decided(2**60, facts, True)) == {"type": "ok", "ref": 2**60, **facts}
    assert orjson.loads(protocol.decided(2**60, facts, False)) == {"type": "ok", "ref": 2**60, **shown}
    lost = VersionConflict("look again", version=7, state=facts)
    answer = {"type": "error", "ref": "r", "code": "version_conflict", "retry": False, "message": "look again"}
    assert orjson.loads(protocol.failed("r", lost)) == {**answer, "current": {"version": 7, "state": facts}}
    assert orjson.loads(protocol.failed("r", lost, False)) == {**answer, "current": {"version": 7, "state": shown}}
