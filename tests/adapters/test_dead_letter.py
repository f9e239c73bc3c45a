"""Dead letters: back and forth without loss, one golden file per reason, nothing a terminal would obey."""

from __future__ import annotations

from hashlib import sha256

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.adapters import dead_letter
from iotsphere.adapters.dead_letter import decode, describe, encode, printable, reason_of
from iotsphere.adapters.edge import Edge
from iotsphere.adapters.envelope import payload_of
from iotsphere.drivers.clock import ManualClock
from iotsphere.entities.dead_letter import MAX_RAW_BYTES, REASONS, STAGES, DeadLetter
from iotsphere.entities.errors import (
    Forbidden,
    IotSphereError,
    LogFull,
    LogUnavailable,
    MessageRefused,
    RateLimited,
    Unauthenticated,
    UnknownDomain,
)
from iotsphere.entities.position import Partition
from iotsphere.entities.principal import Principal, device, parse_grant

from . import golden

NOW = 1_767_225_600_000
ID = "00000000-0000-4000-8000-0000000000c2"
TOPIC = "iotsphere/devices/dev-1/telemetry"

text = st.text(alphabet=st.characters(codec="utf-8"), max_size=30)
letters = st.builds(
    DeadLetter,
    reason=st.sampled_from(sorted(REASONS)),
    stage=st.sampled_from(STAGES),
    topic=text,
    source=text,
    received_at=st.integers(0, 2**42),
    sha256=st.binary(max_size=9).map(lambda raw: sha256(raw).hexdigest()),
    size=st.integers(0, 2**40),
    raw=st.binary(max_size=100),
    attempts=st.integers(0, 1000),
    detail=text,
    message_id=st.none() | st.uuids().map(str),
)


@given(letters)
def test_a_dead_letter_comes_back_as_it_was(letter: DeadLetter) -> None:
    assert decode(encode(letter)) == letter


@pytest.mark.parametrize(
    "payload", [b"", b"[]", b"{}", b"1", b'{"reason":"poison"}', encode.__doc__.encode() if encode.__doc__ else b""]
)
def test_other_payloads_are_no_dead_letters(payload: bytes) -> None:
    with pytest.raises(MessageRefused):
        decode(payload)


@pytest.mark.parametrize(
    ("key", "value"), [("raw", "not base64!"), ("receivedAt", "yesterday"), ("size", "x"), ("raw", None)]
)
def test_a_spoilt_dead_letter_is_refused(key: str, value: object) -> None:
    letter = describe(MessageRefused("x"), stage="ingress", topic=TOPIC, source="dev-1", payload=b"{", received_at=NOW)
    with pytest.raises(MessageRefused):
        decode(orjson.dumps({**orjson.loads(encode(letter)), key: value}))


def test_only_the_first_4_kib_are_kept_and_the_rest_is_proven_by_its_hash() -> None:
    payload = bytes(range(256)) * 2_000
    letter = describe(
        MessageRefused("x", code="payload_too_large"),
        stage="ingress", topic=TOPIC, source="dev-1", payload=payload, received_at=NOW,
    )  # fmt: skip
    assert letter.raw == payload[:MAX_RAW_BYTES]
    assert (letter.size, letter.sha256) == (len(payload), sha256(payload).hexdigest())


@given(st.text(max_size=600))
def test_details_are_printable_and_bounded(detail: str) -> None:
    shown = printable(detail)
    assert shown.isprintable()
    assert len(shown) <= 500


def test_details_escape_what_a_terminal_would_obey() -> None:
    assert printable("a\r\nCRITICAL \x1b[2J\u202e\ud800") == "a\\r\\nCRITICAL \\x1b[2J\\u202e\\ud800"


@pytest.mark.parametrize("error", [Forbidden("x"), UnknownDomain("x"), Unauthenticated("x")])
def test_what_is_not_allowed_is_acl_denied(error: IotSphereError) -> None:
    assert reason_of(error) == "acl_denied"


@pytest.mark.parametrize("error", [LogUnavailable("x"), LogFull("x"), RateLimited("x"), IotSphereError("x")])
def test_what_can_be_retried_is_never_given_up(error: IotSphereError) -> None:
    with pytest.raises(ValueError, match="no reason"):
        reason_of(error)


# -- one golden file per reason ---------------------------------------------------------------------------------------

EDGE = Edge(ManualClock(NOW), lambda domain, channel: [Partition(domain, channel, 0)])
SENDER = Principal(
    "device",
    "dev-1",
    "iotsphere",
    (*device("iotsphere", "dev-1").grants, parse_grant("command:{domain}/devices/dev-1/#", domain="iotsphere")),
)


def _envelope(payload: bytes = b"{}", **metadata: object) -> bytes:
    return b'{"metadata":%b,"payload":%b}' % (orjson.dumps({"messageId": ID, **metadata}), payload)


# reason -> (topic, payload, content type): what the edge refuses by itself
REFUSED: dict[str, tuple[str, bytes, str | None]] = {
    "payload_not_json": (TOPIC, b"21.5 C", None),
    "payload_not_utf8": (TOPIC, b'{"Time":"2022-12-27T15:06:08","Switch10\xf4\x02\x00\x1btele/', None),
    "unknown_codec": (TOPIC, b"\xa1evalue\xf9M`", "application/cbor"),
    "number_not_finite": (TOPIC, b'{"t":NaN}', None),
    "number_too_long": (TOPIC, b'{"t":0.%b}' % (b"3" * 70), None),
    "int_out_of_range": (TOPIC, b'{"value":9223372036854775808}', None),
    "json_too_deep": (TOPIC, b"[" * 33 + b"]" * 33, None),
    "json_duplicate_key": (TOPIC, b'{"a":1,"\\u0061":2}', None),
    "key_not_allowed": (TOPIC, b'{"reported":{"$set":{"role":"admin"}}}', None),
    "schema_violation": (TOPIC, _envelope(messageType="question"), None),
    "timestamp_invalid": (TOPIC, _envelope(timestamp="yesterday"), None),
    "topic_invalid": ("iotsphere/devices//telemetry/t", b"1", None),
    "topic_too_long": ("iotsphere/devices/dev-1/telemetry/" + "m" * 500, b"1", None),
    "payload_too_large": (TOPIC, b"x" * (256 * 1024 + 1), None),
    "expired": (TOPIC, _envelope(expiresAt="2025-12-31T23:59:59Z"), None),
    "acl_denied": ("iotsphere/devices/dev-2/telemetry", b"1", None),
    "topic_mismatch": (TOPIC, _envelope(topic="iotsphere/devices/dev-2/telemetry"), None),
    "invalid_string": (TOPIC, b'{"reported":{"a":"\\ud800"}}', None),
}
# Reasons that other stages, or codecs to come, give.
GIVEN = (
    "codec_error",
    "type_mismatch",
    "duplicate",
    "replayed",
    "stale_session",
    "poison",
    "version_conflict",
    "unknown_command",
)


def test_each_reason_has_a_golden_file() -> None:
    assert set(REFUSED) | set(GIVEN) == REASONS
    assert {path.stem for path in (golden.FOLDER / "dead_letters").iterdir()} == REASONS


@pytest.mark.parametrize("reason", REFUSED)
def test_what_the_edge_refuses_becomes_a_dead_letter(reason: str) -> None:
    topic, payload, content_type = REFUSED[reason]
    with pytest.raises(IotSphereError) as caught:
        EDGE.admit(EDGE.route(SENDER, topic), payload, NOW, content_type=content_type)
    record = EDGE.dead_letter(SENDER, topic, payload, NOW, caught.value)
    letter = decode(payload_of(record.body))
    assert letter.reason == reason
    assert record.topic == "iotsphere/system/dead-letters"
    golden.check(f"dead_letters/{reason}.json", payload_of(record.body))


@pytest.mark.parametrize("reason", GIVEN)
def test_what_others_give_up_becomes_a_dead_letter(reason: str) -> None:
    error = MessageRefused(f"an example of {reason}", code=reason, message_id=ID)
    record = EDGE.dead_letter(SENDER, TOPIC, b'{"value":1}', NOW, error, stage="queue", attempts=5)
    golden.check(f"dead_letters/{reason}.json", payload_of(record.body))


def test_the_sender_is_named_but_the_gateway_is_the_source() -> None:
    record = EDGE.dead_letter(SENDER, TOPIC, b"x", NOW, MessageRefused("x", code="payload_not_json"))
    document = orjson.loads(record.body)
    assert document["metadata"]["source"] == "edge"
    assert document["payload"]["source"] == "dev-1"
    assert dead_letter.decode(payload_of(record.body)).source == "dev-1"


def test_a_repetition_with_its_own_message_id_is_one_dead_letter() -> None:
    error = MessageRefused("x", code="topic_mismatch", message_id=ID)
    one = EDGE.dead_letter(SENDER, TOPIC, b"x", NOW, error)
    again = EDGE.dead_letter(SENDER, TOPIC, b"x", NOW + 5, error)
    assert (one.message_id, one.minted) == (again.message_id, False)
    others = [
        EDGE.dead_letter(SENDER, TOPIC, b"y", NOW, error),
        EDGE.dead_letter(SENDER, TOPIC + "/t", b"x", NOW, error),
        EDGE.dead_letter(device("iotsphere", "dev-2"), TOPIC, b"x", NOW, error),
        EDGE.dead_letter(
            SENDER, TOPIC, b"x", NOW, MessageRefused("x", code="topic_mismatch", message_id=ID[:-1] + "3")
        ),
    ]
    assert len({record.message_id for record in (one, *others)}) == 5


def test_without_a_message_id_each_refusal_counts() -> None:
    error = MessageRefused("x", code="payload_not_json")
    one = EDGE.dead_letter(SENDER, TOPIC, b"21,5", NOW, error)
    two = EDGE.dead_letter(SENDER, TOPIC, b"21,5", NOW, error)
    assert one.message_id != two.message_id
    assert one.minted
    assert two.minted


def test_a_hostile_topic_is_kept_in_part_and_as_valid_text() -> None:
    topic = "\ud800\x1b" + "x" * 100_000
    record = EDGE.dead_letter(SENDER, topic, b"", NOW, MessageRefused("x", code="topic_too_long"))
    letter = decode(payload_of(record.body))
    assert letter.topic.startswith("\\ud800\x1bxxx")
    assert len(letter.topic) == 512
