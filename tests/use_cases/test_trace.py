"""A message can be followed by its id: where it lies, who is past it, and why it was refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iotsphere.entities.errors import NotFound
from iotsphere.use_cases.access.tokens import operator
from iotsphere.use_cases.ports.message_log import Tally
from iotsphere.use_cases.trace import Passage
from tests.support.rooms import Rooms

TOPIC = "iotsphere/devices/d1/telemetry"


async def test_an_accepted_message_shows_its_place_and_its_readers(rooms: Rooms) -> None:
    said = [await rooms.say(TOPIC, {"n": i}) for i in range(3)]
    partition = said[0].record.partition
    for reader, upto in (("iotsphere/ahead", 2), ("iotsphere/at", 1), ("iotsphere/behind", 0)):
        await rooms.log.register(reader, {partition: said[0].position})
        await rooms.log.commit(reader, {partition: (said[upto].position, Tally(applied=upto))})
    elsewhere = rooms.log.partitions("iotsphere", "users")[0]
    await rooms.log.register("iotsphere/elsewhere", {elsewhere: said[0].position})
    trace = await rooms.trace(rooms.operator, said[1].record.message_id)
    assert (trace.entry, trace.dead_letter) == (said[1], None)
    assert [passage for passage in trace.readers if passage.reader != "iotsphere/last-values"] == [
        Passage("iotsphere/ahead", True),
        Passage("iotsphere/at", True),
        Passage("iotsphere/behind", False),
    ]


async def test_a_refused_message_shows_its_dead_letter(rooms: Rooms) -> None:
    stated = "0190c5a0-0000-7000-8000-0000000000dd"
    raw = b'{"metadata":{"messageId":"%b","topic":"x/y/z"},"payload":1}' % stated.encode()
    letter = await rooms.refuse(TOPIC, raw)
    trace = await rooms.trace(rooms.operator, stated)
    assert (trace.entry, trace.readers) == (None, ())
    assert trace.dead_letter is not None
    assert (trace.dead_letter.letter_id, trace.dead_letter.letter.reason) == (letter.message_id, "topic_mismatch")


async def test_a4_a_trace_is_for_operators_and_ends_at_their_domain(rooms: Rooms) -> None:
    said = await rooms.say(TOPIC, {"n": 1})
    for principal in (operator("other"), replace(rooms.operator, roles=frozenset())):
        with pytest.raises(NotFound):
            await rooms.trace(principal, said.record.message_id)
    with pytest.raises(NotFound):
        await rooms.trace(rooms.operator, "no such message")
