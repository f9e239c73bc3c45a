"""Frames: small enough for every client, each piece encoded once, each cursor true at its place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise

import orjson
import pytest

from iotsphere.adapters.client.delivery import ClientDeliveryAdapter
from iotsphere.adapters.client.frames import FRAME_BYTES
from iotsphere.adapters.client.listening import Listening
from iotsphere.adapters.record import Packed, pack
from iotsphere.entities.cursor import Cursor
from iotsphere.entities.errors import CursorInvalid
from iotsphere.entities.message import MAX_PAYLOAD_BYTES, Entry
from iotsphere.entities.position import Partition, Position
from iotsphere.entities.subscription import Start
from iotsphere.use_cases.feed import Batch
from iotsphere.use_cases.work import Handout
from tests.use_cases.stage import DOMAIN, RecordingSink, Stage, open_stage, soon

TOPIC = f"{DOMAIN}/devices/d1/telemetry/t"
P0 = Partition(DOMAIN, "telemetry", 0)
KEY = b"a cursor key of thirty-two bytes"
HEAD = b'{"type":"messages","subscription":"s1","cursor":'


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with open_stage(partitions=1) as opened:
        yield opened


async def listen(stage: Stage, *, each: bool = False, start: Start = Start("live")) -> tuple[Listening, RecordingSink]:  # noqa: B008  immutable
    sink = RecordingSink()
    reader = await stage.open(sink, TOPIC, start=start)
    return Listening("s1", "scope", reader.subscription, HEAD, 100, each, reader), sink


def frames(
    delivery: ClientDeliveryAdapter, batch: Batch, listening: Listening, exact: bool = True
) -> list[dict[str, object]]:
    assert listening.reader is not None
    return [orjson.loads(frame) for frame in delivery.frames(batch, listening.reader, listening, exact)]


def body(value: object, size: int = 0) -> bytes:
    return orjson.dumps({"metadata": {}, "payload": {"value": value, "text": "x" * size}})


async def test_large_batches_are_cut_and_every_cursor_resumes_after_its_frame(stage: Stage) -> None:
    delivery = ClientDeliveryAdapter(stage.feed, KEY)
    listening, _ = await listen(stage)
    await stage.say(*(stage.record(TOPIC, body(number, 200_000)) for number in range(7)))
    batch = Batch(P0, stage.log.shelf(P0).entries, stage.feed.positions[P0])
    made = frames(delivery, batch, listening)
    assert len(made) > 1
    total = 0
    for frame in made:
        assert isinstance(frame["messages"], list)
        total += len(frame["messages"])
        cursor = delivery.read_cursor(str(frame["cursor"]), "scope")
        assert cursor.positions[P0].offset == total
        assert len(orjson.dumps(frame)) <= FRAME_BYTES + 4_096
    assert total == 7


async def test_a_message_of_full_size_fits_below_a_mebibyte(stage: Stage) -> None:
    delivery = ClientDeliveryAdapter(stage.feed, KEY)
    listening, sink = await listen(stage)
    await stage.say(*(stage.record(TOPIC, body(number, MAX_PAYLOAD_BYTES)) for number in range(3)))
    assert listening.reader is not None
    for batch in sink.batches:
        for frame in delivery.frames(batch, listening.reader, listening, False):
            assert len(frame) < 1024 * 1024


async def test_a_cursor_with_each_message_when_asked_for(stage: Stage) -> None:
    delivery = ClientDeliveryAdapter(stage.feed, KEY)
    listening, sink = await listen(stage, each=True)
    await stage.say(*(stage.record(TOPIC, body(number)) for number in range(4)))
    (frame,) = frames(delivery, sink.batches[0], listening)
    assert isinstance(frame["cursors"], list)
    offsets = [delivery.read_cursor(text, "scope").positions[P0].offset for text in frame["cursors"]]
    assert offsets == [1, 2, 3, 4]
    assert frame["cursor"] == frame["cursors"][-1]


async def test_no_position_lies_between_last_values(stage: Stage) -> None:
    delivery = ClientDeliveryAdapter(stage.feed, KEY)
    await stage.say(*(stage.record(TOPIC, body(number, 300_000)) for number in range(2)))
    listening, sink = await listen(stage, each=True, start=Start("latest"))
    assert listening.reader is not None
    await soon(lambda: listening.reader is not None and listening.reader.is_live, "the values are sent")
    entries = stage.log.shelf(P0).entries
    values = Batch(P0, [*entries, *entries], stage.feed.positions[P0], values=True)
    made = frames(delivery, values, listening)
    cursors = [cursor for frame in made for cursor in (frame["cursors"] or [])]  # type: ignore[attr-defined]  # a list
    assert [frame["cursor"] for frame in made[:-1]] == [None] * (len(made) - 1)
    assert cursors[:-1] == [None] * 3
    assert delivery.read_cursor(cursors[-1], "scope").positions[P0].offset == 2
    listening.reader.held = {P0: Position(1, 1)}
    held = delivery.write_cursor({P0: Position(1, 1)}, "scope")
    again = frames(delivery, Batch(P0, [*entries, *entries], stage.feed.positions[P0], values=True), listening)
    assert {frame["cursor"] for frame in again[:-1]} == {held}
    assert sink.batches[0].values


async def test_pieces_are_made_once_per_form(stage: Stage) -> None:
    delivery = ClientDeliveryAdapter(stage.feed, KEY)
    listening, sink = await listen(stage)
    await stage.say(stage.record(TOPIC, body(2**60)))
    (batch,) = sink.batches
    exact, safe = frames(delivery, batch, listening, True), frames(delivery, batch, listening, False)
    first = batch.encoded[True]
    assert exact[0]["messages"] == [orjson.loads(body(2**60))]
    assert safe[0]["messages"] == [orjson.loads(body(str(2**60)))]
    frames(delivery, batch, listening, True)
    assert batch.encoded[True] is first


async def test_tombstones_are_no_messages(stage: Stage) -> None:
    delivery = ClientDeliveryAdapter(stage.feed, KEY)
    listening, sink = await listen(stage)
    await stage.say(stage.record(TOPIC, b"", retain=True), stage.record(TOPIC, body(1)))
    (frame,) = frames(delivery, sink.batches[0], listening)
    assert frame["messages"] == [orjson.loads(body(1))]
    await stage.say(stage.record(TOPIC, b"", retain=True))
    assert frames(delivery, sink.batches[1], listening) == []


async def test_cursors_of_live_readers_move_with_the_feed(stage: Stage) -> None:
    delivery = ClientDeliveryAdapter(stage.feed, KEY)
    listening, _ = await listen(stage)
    assert listening.reader is not None
    texts = []
    for _ in range(3):
        texts.append(delivery.cursor(listening.reader, "scope"))
        assert delivery.cursor(listening.reader, "scope") == texts[-1]
        assert delivery.cursor(listening.reader, "other") != texts[-1]
        await stage.say(stage.record(TOPIC, body(1)))
    assert all(one != two for one, two in pairwise(texts))


def test_cursors_are_for_their_scope(stage: Stage) -> None:
    delivery = ClientDeliveryAdapter(stage.feed, KEY)
    text = delivery.write_cursor({P0: Position(1, 2)}, "scope")
    assert delivery.read_cursor(text, "scope") == Cursor("scope", {P0: Position(1, 2)})
    with pytest.raises(CursorInvalid):
        delivery.read_cursor(text, "another")
    with pytest.raises(CursorInvalid):
        ClientDeliveryAdapter(stage.feed, b"another key of thirty-two bytes!").read_cursor(text, "scope")


def test_deliveries_are_cut_like_messages(stage: Stage) -> None:
    delivery = ClientDeliveryAdapter(stage.feed, KEY)
    handouts = [
        Handout(f"telemetry.0.1.{n}", n, Entry(Position(1, n), 0, stage.record(TOPIC, body(2**60, 100_000))))
        for n in range(1, 12)
    ]
    made = list(delivery.handouts("s4", handouts, False))
    assert len(made) > 1
    assert all(len(frame) <= FRAME_BYTES + 4_096 for frame in made)
    items = [item for frame in made for item in orjson.loads(frame)["deliveries"]]
    assert [(item["delivery"], item["attempt"]) for item in items] == [(h.token, h.attempt) for h in handouts]
    assert items[0]["message"]["payload"]["value"] == str(2**60)
    assert {orjson.loads(frame)["subscription"] for frame in made} == {"s4"}


@pytest.mark.parametrize("exact", [True, False])
async def test_stored_records_are_passed_on_in_the_frames_that_entries_make(stage: Stage, exact: bool) -> None:
    delivery = ClientDeliveryAdapter(stage.feed, KEY)
    listening, _ = await listen(stage, each=True)
    values = [1, 2**60, 3, "9" * 20]
    for sizes in ([0, 0, 0, 0], [200_000] * 4):
        kept = [stage.record(TOPIC, body(value, size)) for value, size in zip(values, sizes, strict=True)]
        if not sizes[0]:
            kept.insert(2, kept[0]._replace(body=b""))
        packed = Packed(P0, Position(1, 0), [pack(record, 5) for record in kept])
        for chosen in (packed, packed[1:], packed.select(lambda _: True, 1)[0]):
            entries = list(chosen)
            made = [
                frames(delivery, Batch(P0, form, entries[-1].position), listening, exact) for form in (chosen, entries)
            ]
            assert made[0] == made[1]
            assert len(made[0]) == (2 if sizes[0] else 1)
