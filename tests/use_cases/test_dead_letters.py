"""Dead letters can be found, understood, sent again once, or given up; and only by an operator of their domain."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import orjson
import pytest

from iotsphere.adapters.envelope import decode, payload_of
from iotsphere.entities.channel import Retention
from iotsphere.entities.errors import Conflict, MessageRefused, NotFound, RequestInvalid
from iotsphere.entities.principal import device
from iotsphere.use_cases import dead_letters as module
from iotsphere.use_cases.access.tokens import operator
from iotsphere.use_cases.ports.work_queue import Delivery
from tests.support.rooms import Rooms

TOPIC = "iotsphere/devices/d1/telemetry"
BAD = b'{"t": 1, "t": 2}'


async def accepted(rooms: Rooms, topic: str) -> list[bytes]:
    """The bodies of all messages on a topic."""
    found = []
    for channel in ("telemetry", "shadow", "system", "commands"):
        for partition in rooms.log.partitions("iotsphere", channel):
            entries = rooms.log.shelf(partition).entries
            found += [entry.record.body for entry in entries if entry.record.topic == topic]
    return found


async def denied(rooms: Rooms, payload: bytes = b'{"t": 21.5}', topic: str = "iotsphere/system/status") -> str:
    """A good message on a topic that its device may not publish to; returns the letter's id."""
    return (await rooms.refuse(topic, payload, device("iotsphere", "d1"))).message_id


async def test_letters_are_listed_newest_first_and_paged(rooms: Rooms) -> None:
    ids = []
    for i in range(12):
        ids.append((await rooms.refuse(TOPIC, b'{"n":%d, "n":0}' % i)).message_id)
        await rooms.say("iotsphere/system/status", {"n": i})
    page = await rooms.dead_letters.page(rooms.operator, limit=5)
    assert [letter.letter_id for letter in page.letters] == ids[:-6:-1]
    seen = list(page.letters)
    while page.before is not None:
        page = await rooms.dead_letters.page(rooms.operator, limit=5, before=page.before)
        seen += page.letters
    assert [letter.letter_id for letter in seen] == ids[::-1]
    first = seen[0].letter
    assert (first.reason, first.stage, first.topic, first.source) == ("json_duplicate_key", "ingress", TOPIC, "d1")
    assert (first.raw, first.size) == (b'{"n":11, "n":0}', 15)


async def test_a_long_way_back_is_looked_through_in_steps(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW", 7)
    monkeypatch.setattr(module, "MAX_SCANNED", 20)
    letter = await rooms.refuse(TOPIC, BAD)
    for i in range(60):
        await rooms.say("iotsphere/system/status", {"n": i})
    page = await rooms.dead_letters.page(rooms.operator)
    steps = 1
    while page.before is not None:
        assert page.letters == []
        page = await rooms.dead_letters.page(rooms.operator, before=page.before)
        steps += 1
    assert ([found.letter_id for found in page.letters], steps) == ([letter.message_id], 3)


async def test_listing_goes_on_when_what_lies_before_was_trimmed(rooms: Rooms) -> None:
    ids = [(await rooms.refuse(TOPIC, b'{"n":%d, "n":0}' % i)).message_id for i in range(6)]
    page = await rooms.dead_letters.page(rooms.operator, limit=2)
    rooms.log.shelf(rooms.log.partitions("iotsphere", "system")[0]).trim(2)
    page = await rooms.dead_letters.page(rooms.operator, limit=10, before=page.before)
    assert [found.letter_id for found in page.letters] == [ids[3], ids[2]]
    page = await rooms.dead_letters.page(rooms.operator, limit=10, before=2)
    assert (page.letters, page.before) == ([], None)


async def test_letters_are_selected_by_reason_device_and_state(rooms: Rooms) -> None:
    twice = (await rooms.refuse(TOPIC, BAD)).message_id
    other = (await rooms.refuse("iotsphere/devices/d2/telemetry", b"{", device("iotsphere", "d2"))).message_id
    intruder = (await rooms.refuse("iotsphere/devices/d1/telemetry", b"{}", device("iotsphere", "d2"))).message_id
    await rooms.dead_letters.discard(rooms.operator, twice)

    async def ids(**selected: str | None) -> set[str]:
        page = await rooms.dead_letters.page(rooms.operator, **selected)  # type: ignore[arg-type]  # texts only here
        return {letter.letter_id for letter in page.letters}

    assert await ids() == {other, intruder}
    assert await ids(state=None) == {twice, other, intruder}
    assert await ids(state="discarded") == {twice}
    assert await ids(reason="acl_denied") == {intruder}
    assert await ids(reason="payload_not_json") == {other}
    assert await ids(device="d1", state=None) == {twice, intruder}
    assert await ids(device="d2") == {other, intruder}


async def test_a_message_is_redriven_once_with_its_source_and_time(rooms: Rooms) -> None:
    received = rooms.clock.now()
    letter_id = await denied(rooms)
    rooms.clock.advance(3_600_000)
    first = await rooms.dead_letters.redrive(rooms.operator, letter_id)
    again = await rooms.dead_letters.redrive(rooms.operator, letter_id)
    rooms.clock.advance(24 * 3_600_000)  # past the log's memory of message ids
    later = await rooms.dead_letters.redrive(rooms.operator, letter_id)
    assert (first.duplicate, again.duplicate, later.duplicate) == (False, True, True)
    assert first[:3] == again[:3] == later[:3]
    bodies = await accepted(rooms, "iotsphere/system/status")
    assert len(bodies) == 1
    message = decode(bodies[0])
    assert (message.payload, message.metadata.source) == (b'{"t":21.5}', "d1")
    entry = await rooms.log.find("iotsphere", first.message_id)
    assert entry is not None
    assert (entry.record.timestamp, entry.position) == (received, first.position)
    letter = await rooms.dead_letters.get(rooms.operator, letter_id)
    assert (letter.state, letter.redriven_as) == ("redriven", first.message_id)
    with pytest.raises(Conflict, match="redriven already"):
        await rooms.dead_letters.discard(rooms.operator, letter_id)


async def test_two_who_redrive_at_the_same_time_send_one_message(rooms: Rooms) -> None:
    letter_id = await denied(rooms)
    both = await asyncio.gather(*(rooms.dead_letters.redrive(rooms.operator, letter_id) for _ in range(2)))
    assert both[0][:3] == both[1][:3]
    assert len(await accepted(rooms, "iotsphere/system/status")) == 1


async def test_an_envelope_keeps_the_message_id_that_it_states(rooms: Rooms) -> None:
    stated = "0190c5a0-0000-7000-8000-0000000000aa"
    metadata = {"messageId": stated, "topic": "iotsphere/system/status"}
    letter_id = await denied(rooms, orjson.dumps({"metadata": metadata, "payload": {"t": 1}}))
    assert (await rooms.dead_letters.redrive(rooms.operator, letter_id)).message_id == stated


async def test_what_is_still_wrong_is_refused_again_and_stays_open(rooms: Rooms) -> None:
    letter_id = (await rooms.refuse(TOPIC, BAD)).message_id
    with pytest.raises(MessageRefused) as refused:
        await rooms.dead_letters.redrive(rooms.operator, letter_id)
    assert refused.value.code == "json_duplicate_key"
    assert (await rooms.dead_letters.get(rooms.operator, letter_id)).state == "open"
    assert len((await rooms.dead_letters.page(rooms.operator)).letters) == 1, "no second letter for the same message"


async def test_a_message_of_which_only_the_beginning_is_kept_cannot_be_redriven(rooms: Rooms) -> None:
    whole = await denied(rooms, b'{"x":"%b"}' % (b"a" * (4096 - 8)))
    cut = await denied(rooms, b'{"x":"%b"}' % (b"a" * (4096 - 7)))
    assert (await rooms.dead_letters.get(rooms.operator, whole)).letter.size == 4096
    assert not (await rooms.dead_letters.redrive(rooms.operator, whole)).duplicate
    with pytest.raises(RequestInvalid, match="first 4096 of 4097 bytes were kept") as refused:
        await rooms.dead_letters.redrive(rooms.operator, cut)
    assert refused.value.code == "dead_letter_truncated"


async def test_a_discarded_letter_stays_discarded(rooms: Rooms) -> None:
    letter_id = await denied(rooms)
    await rooms.dead_letters.discard(rooms.operator, letter_id)
    await rooms.dead_letters.discard(rooms.operator, letter_id)
    letter = await rooms.dead_letters.get(rooms.operator, letter_id)
    assert (letter.state, letter.redriven_as, letter.decided_at) == ("discarded", None, rooms.clock.now())
    with pytest.raises(Conflict, match="discarded"):
        await rooms.dead_letters.redrive(rooms.operator, letter_id)
    assert await accepted(rooms, "iotsphere/system/status") == []


async def test_what_a_queue_gave_up_is_sent_as_a_new_message(rooms: Rooms) -> None:
    said = await rooms.say(TOPIC, {"t": 1}, device("iotsphere", "d1"))
    letter = rooms.bury(Delivery("iotsphere/workers", said.record.partition, said, 6), 5)
    await rooms.publish([letter])
    found = await rooms.dead_letters.get(rooms.operator, letter.message_id)
    assert (found.letter.stage, found.letter.message_id) == ("queue", said.record.message_id)
    redriven = await rooms.dead_letters.redrive(rooms.operator, letter.message_id)
    assert not redriven.duplicate
    assert redriven.message_id != said.record.message_id
    assert [payload_of(body) for body in await accepted(rooms, TOPIC)] == [b'{"t":1}', b'{"t":1}']


async def test_a_command_is_redriven_with_the_right_to_command(rooms: Rooms) -> None:
    topic = "iotsphere/devices/d2/commands/request"
    letter_id = await denied(rooms, b'{"action":"reboot"}', topic)
    await rooms.dead_letters.redrive(rooms.operator, letter_id)
    assert len(await accepted(rooms, topic)) == 1


async def test_a4_another_domain_and_who_is_no_operator_see_nothing(rooms: Rooms) -> None:
    letter_id = await denied(rooms)
    page = await rooms.dead_letters.page(operator("other"))
    assert page.letters == []
    plain = replace(rooms.operator, roles=frozenset())
    for principal in (operator("other"), plain):
        for call in (rooms.dead_letters.get, rooms.dead_letters.redrive, rooms.dead_letters.discard):
            with pytest.raises(NotFound):
                await call(principal, letter_id)
    with pytest.raises(NotFound):
        await rooms.dead_letters.page(plain)
    with pytest.raises(NotFound):
        await rooms.dead_letters.get(rooms.operator, "no such id")
    assert (await rooms.dead_letters.get(rooms.operator, letter_id)).state == "open"


async def test_a_message_that_is_no_letter_is_none_wherever_it_lies(rooms: Rooms) -> None:
    by_hand = await rooms.say("iotsphere/system/dead-letters", {"reason": "mine"})
    elsewhere = await rooms.say(TOPIC, {"t": 1})
    real = await denied(rooms)
    for entry in (by_hand, elsewhere):
        with pytest.raises(NotFound):
            await rooms.dead_letters.get(rooms.operator, entry.record.message_id)
    assert [letter.letter_id for letter in (await rooms.dead_letters.page(rooms.operator)).letters] == [real]
    assert await rooms.dead_letters.counts("iotsphere") == {"acl_denied": 1}


async def test_letters_are_counted_per_reason_also_after_they_were_trimmed(rooms: Rooms) -> None:
    await rooms.refuse(TOPIC, BAD)
    await denied(rooms)
    assert await rooms.dead_letters.counts("iotsphere") == {"acl_denied": 1, "json_duplicate_key": 1}
    await rooms.log.retain(rooms.log.partitions("iotsphere", "system")[0], Retention(0, 0, 0, 0), rooms.clock.now() + 1)
    await rooms.refuse(TOPIC, b"{")
    assert await rooms.dead_letters.counts("iotsphere") == {
        "acl_denied": 1,
        "json_duplicate_key": 1,
        "payload_not_json": 1,
    }
    assert await rooms.dead_letters.counts("other") == {}


async def test_letters_about_a_message_are_found_by_its_id_or_their_own(rooms: Rooms) -> None:
    stated = "0190c5a0-0000-7000-8000-0000000000bb"
    raw = orjson.dumps({"metadata": {"messageId": stated, "topic": "no"}, "payload": 1})
    letter_id = (await rooms.refuse(TOPIC, raw)).message_id
    for _ in range(5):
        await denied(rooms)
    for message_id in (letter_id, stated):
        letter = await rooms.dead_letters.about("iotsphere", message_id)
        assert letter is not None
        assert letter.letter_id == letter_id
    assert await rooms.dead_letters.about("iotsphere", "0190c5a0-0000-7000-8000-0000000000cc") is None
    assert await rooms.dead_letters.about("other", letter_id) is None
