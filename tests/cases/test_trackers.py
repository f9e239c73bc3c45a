"""A26: a tracker uploads what it buffered, newest first, and was without a fix at times; others stay live meanwhile."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from datetime import UTC, datetime
from itertools import count
from typing import Any

import orjson
import pytest

from iotsphere.adapters.edge import Edge
from iotsphere.adapters.record import Packed, pack
from iotsphere.adapters.telemetry_rows import Row, add_rows
from iotsphere.drivers.clock import ManualClock, SystemClock
from iotsphere.drivers.spark.columns import FORMATS
from iotsphere.drivers.spark.decoding import readings_of
from iotsphere.drivers.spark.schema import batch_of
from iotsphere.entities.message import Entry
from iotsphere.entities.position import Partition, Position, partition_index
from iotsphere.entities.principal import device
from tests.support.device import Device
from tests.support.gateway import Credential, Gateway

from .clients import browser, history, mqtt
from .twins import shadow, twin, until_shadow

RECORDED = b64decode(
    "W3sidHMiOjE0NzQwNTYzMTI0MDAsImxhdCI6MS4wLCJsb24iOjIuMCwic2F0IjoxMX0seyJ0cyI6MTQ3NDA1NjIzMzAwMCwibGF0IjoxLjAsImxv"
    "biI6Mi4wLCJzYXQiOjExfSx7InRzIjoxNDc0MDU2MjI5MjAwLCJsYXQiOjAuMCwibG9uIjowLjAsInNhdCI6MH1d"
)
NEWEST = 1_474_056_312_400
AGES = [0, 79_400, 83_200]  # of its three records, ms before the newest
THEN = NEWEST + 8_000  # when they would have been uploaded
NOW = 1_767_225_600_000
BACKLOG = 10_000
MISSING = [("position.lat", None), ("position.lon", None)]
FIX = [("position.lat", 1.0), ("position.lon", 2.0)]


def upload(newest: int) -> list[dict[str, Any]]:
    """The recorded upload, as if its newest record were of this time."""
    records: list[dict[str, Any]] = json.loads(RECORDED)
    return [record | {"ts": record["ts"] - NEWEST + newest} for record in records]


def admitted(payload: bytes, received: int, topic: str = "telemetry/position") -> Entry:
    """What the log holds of a payload."""
    edge = Edge(ManualClock(received), lambda domain, channel: [Partition(domain, channel, 0)])
    route = edge.route(device("iotsphere", "trk-01"), f"iotsphere/devices/trk-01/{topic}")
    return Entry(Position(1, 1), received, edge.admit(route, payload, received))


def rows_of(entry: Entry) -> list[Row]:
    """The readings of an entry; read as columns, they are the same."""
    rows: list[Row] = []
    add_rows(entry, rows)
    schema = FORMATS["readings"].arrow()
    stored = [pack(entry.record, entry.appended_at)]
    found = readings_of([Packed(entry.record.partition, Position(1, 0), stored)], schema)
    assert found.to_pylist() == batch_of(rows, schema).to_pylist()
    return rows


def by_sample(rows: list[Row]) -> list[list[tuple[str, float | None]]]:
    return [[(row.metric, row.value) for row in rows if row.sample == sample] for sample in range(3)]


@pytest.mark.parametrize("received", [THEN, NOW], ids=["as recorded", "with present times"])
def test_case_a26_an_upload_is_three_samples_each_of_its_own_time(received: int) -> None:
    newest = received - 8_000
    payload = RECORDED if received == THEN else orjson.dumps(upload(newest))
    entry = admitted(payload, received)
    assert entry.record.timestamp == newest, "the message is as old as its newest record"
    rows = rows_of(entry)
    ordered = sorted(rows, key=lambda row: row.event_time)
    assert [row.sample for row in ordered] == [2, 2, 2, 1, 1, 1, 0, 0, 0]
    assert [row.event_time // 1000 for row in ordered[::3]] == [newest - age for age in reversed(AGES)]
    assert by_sample(rows) == [
        [*FIX, ("position.sat", 11.0)],
        [*FIX, ("position.sat", 11.0)],
        [*MISSING, ("position.sat", 0.0)],
    ]
    assert {row.quality for row in rows if row.value is None} == {("missing",)}
    assert {row.quality for row in rows if row.value is not None} == {()}


def test_case_a26_years_later_no_time_is_believed_and_the_devices_own_order_is_kept() -> None:
    entry = admitted(RECORDED, NOW)
    assert entry.record.timestamp == NOW
    envelope = json.loads(entry.record.body)
    assert envelope["metadata"]["quality"] == "clock_untrusted"
    assert envelope["payload"] == {"samples": json.loads(RECORDED), "observedAt": "2016-09-16T20:05:12.400Z"}
    rows = rows_of(entry)
    assert {row.event_time for row in rows} == {NOW * 1000}
    assert [row.skew_ms for row in rows[::3]] == [NEWEST - age - NOW for age in AGES]
    assert [row.sample for row in sorted(rows, key=lambda row: row.skew_ms or 0)][-1] == 0
    assert by_sample(rows)[2] == [*MISSING, ("position.sat", 0.0)]
    assert [row.quality for row in rows[6:]] == [("clock_untrusted", "missing")] * 2 + [("clock_untrusted",)]


# On a running gateway


@pytest.mark.asyncio(loop_scope="module")
async def test_case_a26_what_is_older_than_the_latest_never_hides_it(gateway: Gateway) -> None:
    (who,) = await gateway.add_devices(["trk-01"])
    topic = "iotsphere/devices/trk-01/telemetry/position"
    now = SystemClock().now()
    live = {"ts": now, "lat": 52.5, "lon": 13.4, "sat": 9}
    old = upload(now - 3_600_000)
    async with mqtt(gateway, who) as client, browser(gateway) as watcher:
        await watcher.subscribe(topic)
        for payload in (live, old, *old):  # as one message, and as one each
            assert await client.publish(topic, orjson.dumps(payload)) == 0
        await watcher.messages(5)  # what is told has been taken into account
        assert await last(gateway, topic) == live
        async with browser(gateway) as page:
            await page.subscribe(topic, **{"from": "latest"})
            (message,) = await page.messages(1)
            assert message["payload"] == live
        kept = await history(gateway, topic)
        assert [message["payload"] for message in kept] == [live, {"samples": old}, *old]
        stamps = [datetime.fromisoformat(message["metadata"]["timestamp"]).timestamp() for message in kept]
        expected = [now, *(now - 3_600_000 - age for age in (0, *AGES))]
        assert [round(stamp * 1000) for stamp in stamps] == expected
        new = upload(now + 1)
        assert await client.publish(topic, orjson.dumps(new)) == 0
        await watcher.messages(1)
        assert await last(gateway, topic) == {"samples": new}


async def last(gateway: Gateway, topic: str) -> Any:
    async with gateway.api() as api:
        (message,) = (await api.get("/api/v1/latest", params={"filter": topic})).json()["messages"]
        return message["payload"]


class Tracker(Device):
    """Uploads what it buffered, a message for each record, the newest first."""

    started = SystemClock().now()

    def _payload(self, seq: int) -> dict[str, object]:
        return {"ts": self.started - 600_000 - seq * 1_000, "lat": 1.0, "lon": 2.0, "sat": 11, "seq": seq}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("window", "parts_with_others"), [(200, 5), (BACKLOG, 1)], ids=["200 in flight", "as fast as its socket takes them"]
)
async def test_case_a26_a_backlog_of_one_device_leaves_room_for_the_others(
    gateway: Gateway, window: int, parts_with_others: int
) -> None:
    """Two live devices, one of them in the tracker's own partition, send one message after the other all the time."""
    tracker = f"trk-{window}"
    others = [f"live-{window}-{number}" for number in range(100)]
    near = next(name for name in others if partition_index(name, 4) == partition_index(tracker, 4))
    far = next(name for name in others if partition_index(name, 4) != partition_index(tracker, 4))
    buffered, *living = await gateway.add_devices([tracker, near, far])
    position = f"iotsphere/devices/{tracker}/telemetry/position"
    async with mqtt(gateway, buffered, client_id="before") as client:
        current = {"ts": SystemClock().now(), "lat": 52.5, "lon": 13.4, "sat": 9}
        assert await client.publish(position, orjson.dumps(current)) == 0
    arrived: list[tuple[str, int]] = []
    done = asyncio.Event()

    async def live(who: Credential) -> int:
        """How many messages of this device were acknowledged until the backlog had arrived."""
        async with mqtt(gateway, who, client_id=who.device_id) as client:
            for number in count():
                payload = b'{"value":%d,"seq":%d}' % (number, number)
                assert await client.publish(f"iotsphere/devices/{who.device_id}/telemetry/speed", payload) == 0
                if done.is_set():
                    return number + 1
        raise AssertionError

    async with browser(gateway) as page:
        await page.subscribe(*(f"iotsphere/devices/{name}/telemetry/#" for name in (tracker, near, far)))

        async def take(enough: dict[str, int]) -> None:
            """Read until so many messages of each device have arrived."""
            left = dict(enough)
            for name, _ in arrived:
                left[name] = left.get(name, 0) - 1
            while any(number > 0 for number in left.values()):
                for message in (await page.push("messages"))["messages"]:
                    name = message["metadata"]["topic"].split("/")[2]
                    arrived.append((name, message["payload"]["seq"]))
                    left[name] = left.get(name, 0) - 1

        device = Tracker(
            buffered, lambda: gateway.mqtt, count=BACKLOG, window=window, topic="telemetry/position", plain=True
        )
        async with asyncio.TaskGroup() as tasks:
            sending = [tasks.create_task(live(who)) for who in living]
            await take({near: 1, far: 1})  # they are on their way
            # In a thread of its own: what it writes at once is not to hold up the others on this side.
            uploading = tasks.create_task(asyncio.to_thread(asyncio.run, device.run()))
            await take({tracker: BACKLOG})
            await uploading
            done.set()
        await take({who.device_id: task.result() for who, task in zip(living, sending, strict=True)})

    of_tracker = [place for place, (name, _) in enumerate(arrived) if name == tracker]
    assert [arrived[place][1] for place in of_tracker] == list(range(BACKLOG)), "complete, and in its order"
    parts = list(zip(of_tracker[:: BACKLOG // 10], of_tracker[BACKLOG // 10 - 1 :: BACKLOG // 10], strict=True))
    for who, task in zip(living, sending, strict=True):
        assert [seq for name, seq in arrived if name == who.device_id] == list(range(task.result()))
        among = [any(name == who.device_id for name, _ in arrived[first:end]) for first, end in parts]
        assert sum(among) >= parts_with_others, f"{who.device_id} waits: of ten parts of the backlog it came in {among}"
    assert await last(gateway, position) == current


@pytest.mark.asyncio(loop_scope="module")
async def test_case_a26_old_reports_do_not_overwrite_the_live_shadow(gateway: Gateway) -> None:
    (who,) = await gateway.add_devices(["trk-03"])
    now = SystemClock().now()

    def report(at: int, **reported: object) -> str:
        stamp = datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds")
        return json.dumps({"metadata": {"timestamp": stamp}, "payload": {"reported": reported}})

    async with gateway.api() as api, twin(gateway, who) as tracker:
        topic = f"{tracker.topic}/shadow/reported"
        await tracker.client.publish(topic, report(now, lat=52.5, lon=13.4), qos=1)
        live = await until_shadow(api, "trk-03", reported={"lat": 52.5, "lon": 13.4})
        for age in range(1, 101):
            await tracker.client.publish(topic, report(now - age * 1_000, lat=age, lon=-age), qos=1)
        await tracker.report({"reported": {"uploaded": True}})  # folded behind all of them
        after = await until_shadow(api, "trk-03", reported={"lat": 52.5, "lon": 13.4, "uploaded": True})
        assert after["version"] == live["version"] + 1, "no old report made a version"
        assert await shadow(api, "trk-03") == after
