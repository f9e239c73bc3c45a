"""A bridge's messages: replays that stay old, and refusals that have a name."""

from __future__ import annotations

import pytest

from iotsphere.adapters import envelope
from iotsphere.adapters.bridge.messages import as_replay, broker_refusal
from iotsphere.entities.dead_letter import REASONS
from iotsphere.entities.principal import device
from tests.support.rooms import open_rooms


@pytest.mark.parametrize(
    ("payload", "timestamp"),
    [
        (b'{"t":1}', "1970-01-01T00:00:00.000Z"),
        (b"21.5", "1970-01-01T00:00:00.000Z"),
        (b'{"t":1,"time":"1999-01-01T00:00:00Z"}', "1970-01-01T00:00:00.000Z"),  # a time that nobody believes
    ],
)
async def test_a_replay_without_a_believable_time_has_none(payload: bytes, timestamp: str) -> None:
    async with open_rooms() as rooms:
        now = rooms.clock.now()
        record = rooms.edge.admit(
            rooms.edge.route(device("iotsphere", "d1"), "iotsphere/devices/d1/telemetry"), payload, now
        )
        replay = as_replay(record, now)
        await rooms.publish([record, replay._replace(message_id="0" * 8 + record.message_id[8:])])
        await rooms.catch_up()
        kept = rooms.last_values.get(record.partition, record.topic)
    metadata = envelope.decode(replay.body).metadata
    assert (metadata.timestamp, metadata.quality) == (timestamp, "retained")
    assert metadata.received_at is not None
    assert (replay.timestamp, replay.message_id) == (0, record.message_id)
    assert envelope.payload_of(replay.body) == envelope.payload_of(record.body)
    assert kept is not None
    assert kept.record == record  # the live value is the last one still


@pytest.mark.parametrize("code", [0x80, 0x83, 0x87, 0x90, 0x95, 0x97, 0x99, 0xFF])
def test_every_refusal_of_a_broker_is_a_reason(code: int) -> None:
    error = broker_refusal(code, "cmnd/d1")
    assert error.code in REASONS
    assert f"0x{code:02X}" in error.message
