"""The edge: what is admitted, as which record, and what is refused before it can do harm."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.adapters.edge import Edge
from iotsphere.adapters.envelope import WIRE_NAMES, decode, encode, payload_of
from iotsphere.adapters.message_id import minted_at
from iotsphere.adapters.timestamps import DAY_MS, iso
from iotsphere.drivers.clock import ManualClock
from iotsphere.entities.dead_letter import REASONS
from iotsphere.entities.errors import Forbidden, MessageRefused, TopicInvalid, UnknownDomain
from iotsphere.entities.message import MAX_PAYLOAD_BYTES, Record
from iotsphere.entities.position import Partition, partition_index
from iotsphere.entities.principal import OPERATOR_GRANTS, Principal, device, parse_grant
from tests.support.examples import tried

from . import golden
from .json_texts import mutated

NOW = 1_767_225_600_000
ID = "00000000-0000-4000-8000-0000000000c2"
OTHER = "11111111-0000-4000-8000-0000000000c2"
DEVICE = device("iotsphere", "dev-1")
OPERATOR = Principal(
    "user", "olga", "iotsphere", tuple(parse_grant(text, domain="iotsphere") for text in OPERATOR_GRANTS)
)
TELEMETRY = "iotsphere/devices/dev-1/telemetry"


def _partitions(domain: str, channel: str) -> list[Partition]:
    if domain != "iotsphere":
        raise UnknownDomain(f"{domain} is unknown")
    return [Partition(domain, channel, number) for number in range(4)]


EDGE = Edge(ManualClock(NOW), _partitions)


def admit(payload: bytes, topic: str = TELEMETRY, sender: Principal = DEVICE, **options: Any) -> Record:
    return EDGE.admit(EDGE.route(sender, topic), payload, NOW, **options)


def refused(payload: bytes, topic: str = TELEMETRY, sender: Principal = DEVICE, **options: Any) -> MessageRefused:
    with pytest.raises(MessageRefused) as caught:
        admit(payload, topic, sender, **options)
    assert caught.value.code in REASONS
    return caught.value


def envelope(payload: object = None, **metadata: object) -> bytes:
    return orjson.dumps({"metadata": metadata, "payload": {"v": 1} if payload is None else payload})


# -- routes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "message_type"),
    [
        ("iotsphere/devices/dev-1/telemetry", "event"),
        ("iotsphere/devices/dev-1/telemetry/response", "event"),
        ("iotsphere/devices/dev-1/shadow/desired", "event"),
        ("iotsphere/devices/dev-1/commands/request", "command"),
        ("iotsphere/devices/dev-1/commands/response", "response"),
        ("iotsphere/users/u1/notifications", "notification"),
        ("iotsphere/users/u1/preferences", "event"),
        ("iotsphere/devices/batch/alerts", "event"),
        ("iotsphere/system/alerts", "event"),
    ],
)
def test_the_message_type_follows_from_the_topic(topic: str, message_type: str) -> None:
    route = EDGE.route(OPERATOR, topic)
    assert route.message_type == message_type
    message = decode(EDGE.admit(route, b"{}", NOW).body)
    assert (message.metadata.message_type, message.metadata.source) == (message_type, "olga")


def test_the_partition_follows_from_the_key() -> None:
    for name in ("dev-1", "dev-2", "dev-3"):
        for tail in ("telemetry", "telemetry/t", "telemetry/u"):
            route = EDGE.route(OPERATOR, f"iotsphere/devices/{name}/{tail}")
            assert route.partition == Partition("iotsphere", "telemetry", partition_index(name, 4))


def test_a_route_needs_a_grant_for_the_action() -> None:
    for topic in ("iotsphere/devices/dev-2/telemetry", "iotsphere/devices/dev-1/commands/request"):
        with pytest.raises(Forbidden):
            EDGE.route(DEVICE, topic)
    with pytest.raises(Forbidden):
        EDGE.route(DEVICE, "iotsphere/devices/dev-1/commands/response", "command")
    EDGE.route(OPERATOR, "iotsphere/devices/dev-1/commands/request", "command")


def test_another_domain_reads_the_same_whether_it_exists_or_not() -> None:
    for domain in ("acme", "nowhere"):
        with pytest.raises(Forbidden) as caught:
            EDGE.route(OPERATOR, f"{domain}/system/alerts")
        said = f"user 'olga' may not publish on '{domain}/system/alerts'"
        assert caught.value.message == f"{said}: its topics begin with 'iotsphere/', and no grant reaches beyond"


@pytest.mark.parametrize(
    ("principal", "topic", "remedy"),
    [
        (
            Principal("user", "ann", "iotsphere"),
            "iotsphere/system/alerts",
            "ask the operator for a token with that grant (iotsphere token 'user:ann' --grant 'publish:TOPIC')",
        ),
        (
            DEVICE,
            "iotsphere/devices/dev-2/telemetry",
            "a device speaks for itself, on topics that begin with 'iotsphere/devices/dev-1/'",
        ),
    ],
)
def test_a_refusal_says_what_to_do(principal: Principal, topic: str, remedy: str) -> None:
    with pytest.raises(Forbidden) as caught:
        EDGE.route(principal, topic)
    who = f"{principal.kind} '{principal.name}'"
    assert caught.value.message == f"{who} may not publish on '{topic}': {remedy}"


def test_a_principal_of_a_domain_that_was_never_made_is_told() -> None:
    stranger = Principal("service", "s", "acme", (parse_grant("publish:acme/#", domain="acme"),))
    with pytest.raises(UnknownDomain):
        EDGE.route(stranger, "acme/system/alerts")


def test_odd_topics_have_no_route() -> None:
    with pytest.raises(TopicInvalid):
        EDGE.route(OPERATOR, "iotsphere/devices//telemetry")


def test_an_expired_credential_has_no_route() -> None:
    for expires_at, allowed in ((NOW + 1, True), (NOW, False)):
        sender = Principal("device", "dev-1", "iotsphere", DEVICE.grants, expires_at=expires_at)
        if allowed:
            EDGE.route(sender, TELEMETRY)
        else:
            with pytest.raises(Forbidden, match="expired"):
                EDGE.route(sender, TELEMETRY)


# -- plain payloads ---------------------------------------------------------------------------------------------------


def test_a_plain_payload_becomes_a_record() -> None:
    record = admit(b'{"temperature": 21.5}', retain=True)
    assert record[:3] == (EDGE.route(DEVICE, TELEMETRY).partition, TELEMETRY, record.message_id)
    assert minted_at(record.message_id) == NOW
    assert record[4:] == (NOW, 0, True, True, 2)
    message = decode(record.body)
    assert message.payload == b'{"temperature":21.5}'
    assert message.metadata.message_id == record.message_id
    assert message.metadata.received_at is None
    assert not admit(b"1").retain


def test_every_body_is_what_the_encoder_writes() -> None:
    for record in (
        admit(b"1"),
        admit(b'{"ts":1767225599000}'),
        admit(b'{"ts":0}', message_id=ID, correlation_id=OTHER, expires_at=NOW + 1, content_type="application/json"),
        admit(envelope(traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01", quality="good", messageId=ID)),
    ):
        assert encode(decode(record.body)) == record.body


def test_the_sender_may_name_the_message() -> None:
    record = admit(b"1", message_id=ID, correlation_id=OTHER, expires_at=NOW + 60_000)
    metadata = decode(record.body).metadata
    assert (record.message_id, record.minted, record.expires_at) == (ID, False, NOW + 60_000)
    assert (metadata.message_id, metadata.correlation_id) == (ID, OTHER)
    assert metadata.expires_at == "2026-01-01T00:01:00.000Z"


@pytest.mark.parametrize("option", ["message_id", "correlation_id"])
def test_ids_have_one_spelling(option: str) -> None:
    options: dict[str, Any] = {option: ID.upper()}
    error = refused(b"1", **options)
    assert error.code == "schema_violation"
    assert "lower case" in error.message
    assert error.facts.get("message_id") is None


def test_a_message_that_has_expired_is_refused() -> None:
    assert refused(b"1", expires_at=NOW, message_id=ID).code == "expired"
    assert refused(b"1", expires_at=-(10**20)).code == "expired"
    assert admit(b"1", expires_at=NOW + 1).expires_at == NOW + 1
    assert decode(admit(b"1", expires_at=10**20).body).metadata.expires_at == "9999-12-31T23:59:59.999Z"


def test_a_content_type_travels_on() -> None:
    assert decode(admit(b"21.5", content_type="text/plain").body).metadata.content_type == "text/plain"
    quoted = 'application/json; charset="utf-8"'
    assert decode(admit(b"{}", content_type=quoted).body).metadata.content_type == quoted
    assert refused(b"{}", content_type="application/cbor").code == "unknown_codec"


def test_size_comes_before_all_else() -> None:
    limit = MAX_PAYLOAD_BYTES
    assert refused(b"\xff" * (limit + 1), content_type="image/png").code == "payload_too_large"
    assert len(admit(b'"' + b"x" * (limit - 12) + b'"').body) > limit
    # Numbers can grow when they are written anew.
    assert refused(b'{"a":[' + b"1e9," * 65_000 + b"1]}").code == "payload_too_large"


def test_an_empty_payload_is_no_json() -> None:
    assert refused(b"").code == "payload_not_json"


def test_a_refusal_names_the_message_where_it_can() -> None:
    assert refused(b"{", message_id=ID).facts["message_id"] == ID
    assert refused(envelope(messageId=ID, topic="x")).facts["message_id"] == ID
    assert refused(envelope(messageId=ID, unknown=1), message_id=OTHER).facts["message_id"] == ID
    assert refused(envelope(messageId="x"), message_id=OTHER).facts["message_id"] == OTHER
    assert refused(envelope(messageId="x")).facts.get("message_id") is None


# -- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["timestamp", "ts", "time", "Time"])
@pytest.mark.parametrize("value", [NOW - 60_000, (NOW - 60_000) // 1000, iso(NOW - 60_000), (NOW - 60_000) * 1_000_000])
def test_a_believable_time_of_the_device_is_the_messages_time(key: str, value: object) -> None:
    record = admit(orjson.dumps({key: value, "v": 1}))
    message = decode(record.body)
    assert record.timestamp == NOW - 60_000
    assert message.metadata.timestamp == "2025-12-31T23:59:00.000Z"
    assert message.metadata.received_at == "2026-01-01T00:00:00.000Z"
    assert message.metadata.quality is None
    assert orjson.loads(message.payload) == {key: value, "v": 1}


@pytest.mark.parametrize(
    ("stated", "observed"),
    [
        ("1970-01-01T00:00:03", "1970-01-01T00:00:03.000Z"),
        (64_698_438_051_149, "4020-03-18T12:20:51.149Z"),
        ("3236-01-12T23:59:48Z", "3236-01-12T23:59:48.000Z"),
        (-1, "1969-12-31T23:59:59.000Z"),
        (NOW + 300_001, "2026-01-01T00:05:00.001Z"),
        (NOW - 30 * DAY_MS - 1, "2025-12-01T23:59:59.999Z"),
    ],
)
def test_a08_an_unbelievable_time_is_kept_beside_the_values(stated: object, observed: str) -> None:
    record = admit(orjson.dumps({"ts": stated, "v": 1}))
    message = decode(record.body)
    assert record.timestamp == NOW
    assert message.metadata.quality == "clock_untrusted"
    assert message.metadata.received_at is None
    assert orjson.loads(message.payload) == {"ts": stated, "v": 1, "observedAt": observed}


def test_a_time_that_equals_the_arrival_is_not_said_twice() -> None:
    for payload in (b'{"ts":%d}' % NOW, b'{"ts":"2026-01-01T00:00:00Z"}', envelope({}, timestamp=NOW)):
        metadata = decode(admit(payload).body).metadata
        assert (metadata.timestamp, metadata.received_at, metadata.quality) == (iso(NOW), None, None)
    assert decode(admit(b'{"ts":"2026-01-01T00:00:00"}').body).metadata.quality == "tz_assumed"


def test_what_the_device_observed_itself_is_never_overwritten() -> None:
    message = decode(admit(b'{"ts":0,"observedAt":"mine"}').body)
    assert orjson.loads(message.payload) == {
        "ts": 0,
        "observedAt": "mine",
        "deviceTime": "1970-01-01T00:00:00.000Z",
    }
    full = b'{"ts":0,"observedAt":1,"deviceTime":2}'
    assert payload_of(admit(full).body) == full


@pytest.mark.parametrize("stated", ["10:27:02", "", "soon", 1e30])
def test_a_time_that_cannot_be_read_stays_data(stated: object) -> None:
    record = admit(orjson.dumps({"time": stated}))
    message = decode(record.body)
    assert (record.timestamp, message.metadata.quality) == (NOW, "clock_untrusted")
    assert orjson.loads(message.payload) == {"time": stated}


@pytest.mark.parametrize("stated", [None, True, {"hours": 3}, [1]])
def test_what_is_no_statement_of_time_is_ignored(stated: object) -> None:
    assert decode(admit(orjson.dumps({"time": stated})).body).metadata.quality is None


def test_the_first_key_that_can_be_read_counts() -> None:
    assert admit(b'{"timestamp":"10:27:02","ts":1767225599000}').timestamp == NOW - 1000
    assert admit(b'{"Time":"2025-12-31T23:59:58Z","timestamp":1767225599000}').timestamp == NOW - 1000


def test_a_time_without_zone_is_marked() -> None:
    message = decode(admit(b'{"Time":"2025-12-31T23:00:00","v":1}').body)
    assert message.metadata.quality == "tz_assumed"
    assert message.metadata.timestamp == "2025-12-31T23:00:00.000Z"


@pytest.mark.parametrize(
    ("records", "time", "quality"),
    [
        ([{"ts": NOW - 9_000, "v": 1}, {"ts": NOW - 5_000, "v": 2}, {"ts": NOW - 7_000}], NOW - 5_000, None),
        ([{"ts": 1, "v": 1}, {"ts": NOW - 7_000}], NOW - 7_000, None),
        ([{"ts": "soon"}, {"Time": iso(NOW - 7_000)[:-1]}], NOW - 7_000, "tz_assumed"),
        ([{"ts": NOW - 9_000}, {"Time": iso(NOW - 7_000)}], NOW - 7_000, None),
        ([{"ts": NOW - 5_000}, {"Time": iso(NOW - 7_000)[:-1]}], NOW - 5_000, None),
        ([{"ts": NOW - 5_000, "timestamp": NOW - 8_000}], NOW - 8_000, None),
        ([{"ts": NOW - 9_000}, {"v": 2}], NOW, None),
        ([{"ts": NOW - 9_000}, 2], NOW, None),
        ([{"ts": NOW - 9_000}, {"ts": None}], NOW, None),
        ([{"ts": "soon"}], NOW, "clock_untrusted"),
        ([], NOW, None),
    ],
)
def test_a26_an_array_is_as_old_as_its_newest_record(records: list[object], time: int, quality: str | None) -> None:
    for payload in (records, {"samples": records, "unit": "V"}):
        record = admit(orjson.dumps(payload))
        message = decode(record.body)
        assert (record.timestamp, message.metadata.timestamp, message.metadata.quality) == (time, iso(time), quality)
        assert message.metadata.received_at == (None if time == NOW else iso(NOW))
        assert orjson.loads(message.payload)["samples"] == records
    other = {"samples": records, "ts": NOW - 1}, {"samples": records, "mode": 1}
    assert [admit(orjson.dumps(payload)).timestamp for payload in other] == [NOW - 1, NOW]
    assert admit(orjson.dumps(records), "iotsphere/devices/dev-1/shadow/reported").timestamp == NOW


def test_a26_the_newest_time_of_an_array_that_is_not_believed_is_kept_beside_it() -> None:
    records = [{"ts": 1_000, "v": 1}, {"ts": 5_000, "v": 2}, {"ts": 3_000}, {"ts": "soon"}]
    record = admit(orjson.dumps(records))
    assert (record.timestamp, decode(record.body).metadata.quality) == (NOW, "clock_untrusted")
    observed = {"samples": records, "observedAt": "1970-01-01T01:23:20.000Z"}
    assert orjson.loads(payload_of(record.body)) == observed


def test_only_telemetry_states_its_time_in_its_payload() -> None:
    record = admit(b'{"time":"07:30","ts":1}', "iotsphere/devices/dev-1/shadow/reported")
    assert record.timestamp == NOW
    assert decode(record.body).metadata.quality is None
    assert payload_of(record.body) == b'{"time":"07:30","ts":1}'


# -- envelopes --------------------------------------------------------------------------------------------------------


def test_an_envelope_states_what_its_sender_may_state() -> None:
    record = admit(
        envelope(
            {"b": 1, "a": 2},
            messageId=ID,
            timestamp="2025-12-31T23:59:00.000Z",
            topic=TELEMETRY,
            source="somebody else",
            correlationId=OTHER,
            messageType="notification",
            version="1",
            receivedAt="1999-01-01T00:00:00Z",
            expiresAt="2026-01-02T00:00:00Z",
            traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            quality="sensor_error",
        )
    )
    assert (record.message_id, record.timestamp, record.expires_at) == (ID, NOW - 60_000, NOW + DAY_MS)
    assert not record.minted
    golden.check("envelopes/full.json", record.body)


@pytest.mark.parametrize(
    ("inner", "payload"),
    [([1, 2], b'{"samples":[1,2]}'), (21.5, b'{"value":21.5}'), ("x", b'{"value":"x"}'), ({}, b"{}")],
)
def test_an_enveloped_payload_is_an_object_too(inner: object, payload: bytes) -> None:
    assert payload_of(admit(envelope(inner)).body) == payload


def test_a_null_payload_is_a_value() -> None:
    assert payload_of(admit(b'{"metadata":{},"payload":null}').body) == b'{"value":null}'


def test_what_an_envelope_leaves_out_the_gateway_fills_in() -> None:
    record = admit(b'{"metadata":{"correlationId":null},"payload":{}}')
    assert record.minted
    assert decode(record.body).metadata == decode(admit(b"{}", message_id=record.message_id).body).metadata


def test_only_exactly_metadata_and_payload_are_an_envelope() -> None:
    for plain in (b'{"metadata":{"x":1},"payload":{},"more":1}', b'{"metadata":{"x":1}}', b'{"payload":{}}'):
        assert payload_of(admit(plain).body) == plain


def test_the_envelope_wins_over_the_transport_and_the_earlier_expiry_holds() -> None:
    record = admit(envelope(messageId=ID, expiresAt=iso(NOW + 10)), message_id=OTHER, expires_at=NOW + 5)
    assert (record.message_id, record.expires_at) == (ID, NOW + 5)
    assert admit(envelope(expiresAt=iso(NOW + 3)), expires_at=NOW + 5).expires_at == NOW + 3
    assert admit(envelope(), message_id=OTHER).message_id == OTHER


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"topic": "iotsphere/devices/dev-2/telemetry"}, "topic_mismatch"),
        ({"topic": 1}, "schema_violation"),
        ({"messageId": "x"}, "schema_violation"),
        ({"messageId": ID.upper()}, "schema_violation"),
        ({"messageId": {"$ne": None}}, "key_not_allowed"),
        ({"messageId": 5}, "schema_violation"),
        ({"correlationId": "x"}, "schema_violation"),
        ({"messageType": "Event"}, "schema_violation"),
        ({"version": "2"}, "schema_violation"),
        ({"version": 1}, "schema_violation"),
        ({"unknown": 1}, "schema_violation"),
        ({"traceparent": "00"}, "schema_violation"),
        ({"quality": 'x","a":"'}, "schema_violation"),
        ({"source": 1}, "schema_violation"),
        ({"contentType": "image/png"}, "unknown_codec"),
        ({"timestamp": "yesterday"}, "timestamp_invalid"),
        ({"timestamp": True}, "timestamp_invalid"),
        ({"expiresAt": "never"}, "timestamp_invalid"),
        ({"expiresAt": "2025-12-31T23:59:59.999Z"}, "expired"),
        ({"expiresAt": "1960-01-01T00:00:00Z"}, "expired"),
    ],
)
def test_metadata_that_does_not_fit_is_refused(metadata: dict[str, object], reason: str) -> None:
    assert refused(envelope(**metadata)).code == reason


def test_metadata_must_be_an_object() -> None:
    for metadata in (b"null", b"[]", b'"x"', b"1"):
        assert refused(b'{"metadata":%b,"payload":{}}' % metadata).code == "schema_violation"


def test_too_many_samples_do_not_hide_in_an_envelope() -> None:
    assert len(orjson.loads(payload_of(admit(envelope([0] * 1_000)).body))["samples"]) == 1_000
    assert refused(envelope([0] * 1_001)).code == "schema_violation"


def test_an_enveloped_time_is_judged_like_any_other() -> None:
    message = decode(admit(envelope({"v": 1}, timestamp="2024-01-01T00:00:00Z")).body)
    assert message.metadata.timestamp == iso(NOW)
    assert message.metadata.quality == "clock_untrusted"
    assert message.payload == b'{"v":1,"observedAt":"2024-01-01T00:00:00.000Z"}'
    believed = decode(admit(envelope({"ts": 0}, timestamp=NOW - 5)).body)
    assert (believed.metadata.timestamp, believed.payload) == (iso(NOW - 5), b'{"ts":0}')


# -- golden files and fuzz --------------------------------------------------------------------------------------------

GOLDEN: dict[str, tuple[bytes, str]] = {
    "number": (b" -085\n", TELEMETRY + "/rssi"),
    "object": (b'{"temperature": 21.5, "unit": "\\u00b0C"}', TELEMETRY),
    "samples": (b'[{"ts": 1, "value": 2}]', TELEMETRY),
    "own_time": (b'{"ts":1767225540000,"value":7e-06}', TELEMETRY),
    "tz_assumed": (b'{"Time":"2025-12-31T23:00:00","SHT3X-0x45":{"Temperature":23.6}}', TELEMETRY + "/sensor"),
    "clock_untrusted": (b'{"Time":"1970-01-01T00:00:03","ENERGY":{"Power":7}}', TELEMETRY),
    "response": (b'{"status":"done"}', "iotsphere/devices/dev-1/commands/response"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_envelopes_are_golden(name: str) -> None:
    payload, topic = GOLDEN[name]
    record = admit(payload, topic)
    golden.check(f"envelopes/{name}.json", record.body.replace(record.message_id.encode(), ID.encode()))


stated = st.one_of(st.none(), st.integers(-(2**53), 2**53), st.text(max_size=8), st.just(ID), st.just(TELEMETRY))
claims = st.dictionaries(st.sampled_from((*WIRE_NAMES, "x")), stated, max_size=3)
anything = st.one_of(
    mutated(),
    mutated().map(lambda raw: b'{"metadata":' + raw + b',"payload":1}'),
    mutated().map(lambda raw: b'{"metadata":{},"payload":' + raw + b"}"),
    claims.map(lambda metadata: json.dumps({"metadata": metadata, "payload": {}}).encode()),
)


@tried(100)
@given(anything, st.sampled_from((None, "application/json", "text/plain", "x")), st.none() | st.text(max_size=3))
def test_any_bytes_are_one_record_or_one_dead_letter(
    raw: bytes, content_type: str | None, message_id: str | None
) -> None:
    route = EDGE.route(DEVICE, TELEMETRY)
    try:
        record = EDGE.admit(route, raw, NOW, content_type=content_type, message_id=message_id)
    except MessageRefused as error:
        record = EDGE.dead_letter(DEVICE, TELEMETRY, raw, NOW, error)
    message = decode(record.body)
    assert encode(message) == record.body
    assert isinstance(orjson.loads(record.body)["payload"], dict)
    assert message.metadata.message_id == record.message_id
    assert iso(record.timestamp) == message.metadata.timestamp


@pytest.mark.parametrize("topic", ["devices/dev-1/presence", "devices/dev-1/errors", "system/dead-letters"])
def test_what_the_gateway_tells_nobody_else_does(topic: str) -> None:
    with pytest.raises(Forbidden, match="told by the gateway alone"):
        EDGE.route(OPERATOR, f"iotsphere/{topic}")
    assert EDGE.own_route(f"iotsphere/{topic}").source == "gateway"
    for other in ("system/alerts", "system/status", "devices/batch/alerts"):
        assert EDGE.route(OPERATOR, f"iotsphere/{other}").topic.text == f"iotsphere/{other}"
