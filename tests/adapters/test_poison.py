"""What a processor gives up becomes one dead letter per reader and message, whatever the refusal is called."""

from __future__ import annotations

import json
from typing import Any

import pytest

from iotsphere.adapters.edge import Edge
from iotsphere.adapters.poison import fact_letters
from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.memory.log import MemoryLog
from iotsphere.entities.channel import DEFAULT_CHANNELS
from iotsphere.entities.errors import Conflict, IotSphereError, MessageRefused, VersionConflict
from iotsphere.entities.message import Entry, Record
from iotsphere.entities.position import Position
from iotsphere.entities.principal import device

TOPIC = "iotsphere/devices/d1/shadow/reported"
READER = "iotsphere/shadows"


@pytest.fixture
async def edge() -> Edge:
    log = MemoryLog(ManualClock())
    await log.ensure("iotsphere", DEFAULT_CHANNELS)
    return Edge(ManualClock(), log.partitions)


def entry(edge: Edge, body: bytes | None = None) -> Entry:
    """A message of a device as it lies in the log."""
    record = edge.admit(edge.route(device("iotsphere", "d1"), TOPIC), b'{"reported":{"n":1}}', ManualClock().now())
    return Entry(Position(1, 1), 0, record if body is None else record._replace(body=body))


def letter(record: Record) -> dict[str, Any]:
    """The dead letter in a record."""
    payload: dict[str, Any] = json.loads(record.body)["payload"]
    return payload


@pytest.mark.parametrize(
    ("refusal", "reason", "detail"),
    [
        (MessageRefused("it has no reported: send one", code="schema_violation"), "schema_violation", "it has no"),
        (VersionConflict("it is at 7: read it again"), "version_conflict", "it is at 7"),
        (Conflict("it is with the device: wait"), "poison", "conflict: it is with the device"),
        (None, "poison", "the processor 'shadows' failed 5 times"),
    ],
)
async def test_each_refusal_has_a_reason(edge: Edge, refusal: IotSphereError | None, reason: str, detail: str) -> None:
    bury = fact_letters(edge, ManualClock())
    fact = entry(edge)
    told = letter(bury(READER, fact, refusal, 5))
    assert told["reason"] == reason
    assert told["detail"].startswith(detail)
    assert (told["stage"], told["topic"], told["attempts"]) == ("processor", TOPIC, 5)
    assert told["messageId"] == fact.record.message_id
    assert told["size"] == len(b'{"reported":{"n":1}}')


async def test_a_repetition_is_the_same_letter(edge: Edge) -> None:
    bury = fact_letters(edge, ManualClock())
    fact = entry(edge)
    first = bury(READER, fact, None, 5)
    assert bury(READER, fact, None, 6).message_id == first.message_id
    assert bury("iotsphere/commands", fact, None, 5).message_id != first.message_id
    assert bury(READER, entry(edge), None, 5).message_id != first.message_id


async def test_what_is_no_envelope_is_buried_as_it_is(edge: Edge) -> None:
    told = letter(fact_letters(edge, ManualClock())(READER, entry(edge, b"\xff no envelope"), None, 5))
    assert told["reason"] == "poison"
    assert told["size"] == len(b"\xff no envelope")
