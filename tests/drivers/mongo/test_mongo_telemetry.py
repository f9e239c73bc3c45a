"""Telemetry in MongoDB: the latest value is never an older one, and a reading that comes again is kept once."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo.database import Database as Shell

from iotsphere.drivers.mongo.database import MongoDatabase
from iotsphere.drivers.mongo.telemetry import MongoTelemetry
from iotsphere.entities.errors import DatabaseUnavailable
from iotsphere.use_cases.ports.telemetry import Reading, TelemetryStore
from tests.support.waiting import until

Mongo = Shell[dict[str, Any]]
NOW = int(time.time()) * 1_000  # what was received long ago would be removed


def reading(number: int, at: int = 0, metric: str = "temperature", device: str = "pump-7") -> Reading:
    return Reading("iotsphere", device, metric, number, at, NOW + number, f"message-{number}", f"{number:020d}")


@pytest.fixture
async def store(database: MongoDatabase) -> MongoTelemetry:
    store = MongoTelemetry(database.link)
    await store.ensure()
    return store


async def test_a_reading_reads_naturally(store: TelemetryStore, shell: Mongo) -> None:
    text = {"$x.y": "$value"}
    await store.save([Reading("acme", "d", "level", text, NOW, NOW + 5, "m", "0001", "m³", "clock_untrusted")])
    facts = {
        "domain": "acme",
        "device": "d",
        "metric": "level",
        "value": text,
        "unit": "m³",
        "quality": "clock_untrusted",
        "at": datetime.fromtimestamp(NOW / 1_000, UTC).replace(tzinfo=None),
        "received": datetime.fromtimestamp((NOW + 5) / 1_000, UTC).replace(tzinfo=None),
        "messageId": "m",
        "order": "0001",
        "schema": 1,
    }
    assert shell.latest.find_one() == {"_id": "acme/d/level", **facts}
    assert shell.history.find_one() == {"_id": f"m/level/{NOW}", **facts}


async def test_an_older_reading_never_hides_a_newer_one(store: TelemetryStore, shell: Mongo) -> None:
    for late in (reading(2, at=20), reading(3, at=10), reading(1, at=20)):
        await store.save([late])
        assert [one["value"] for one in shell.latest.find()] == [2]
    await store.save([reading(4, at=20)])
    assert [one["value"] for one in shell.latest.find()] == [4]
    await store.save([reading(5, at=5), reading(7, at=30), reading(6, at=30), reading(8, at=1)])
    assert [one["value"] for one in shell.latest.find()] == [7]
    assert shell.history.count_documents({}) == 8


async def test_null_is_a_value(store: TelemetryStore, shell: Mongo) -> None:
    await store.save([reading(1), reading(2, at=1)._replace(value=None)])
    latest = shell.latest.find_one()
    assert latest is not None
    assert latest["value"] is None
    assert "unit" not in latest


async def test_what_comes_again_is_kept_once(store: TelemetryStore, shell: Mongo) -> None:
    readings = [reading(number, at=number, metric=f"m{number % 3}") for number in range(2_500)]
    await store.save(readings)
    await store.save(readings[:10])
    await store.save([*readings[2_000:], reading(2_500, at=0, metric="m1")])
    assert shell.history.count_documents({}) == 2_501
    assert {one["_id"]: one["value"] for one in shell.latest.find()} == {
        "iotsphere/pump-7/m0": 2_499,
        "iotsphere/pump-7/m1": 2_497,
        "iotsphere/pump-7/m2": 2_498,
    }
    await store.save([])


async def test_whatever_the_order_and_the_repeats_all_end_alike(store: TelemetryStore, shell: Mongo) -> None:
    """Several processes save the same readings at once, in other orders and cut otherwise."""
    rng = random.Random(7)
    readings = [
        reading(number, at=rng.randrange(20), metric=rng.choice("abc"), device=rng.choice(("d1", "d2")))
        for number in range(200)
    ]
    expected = {
        f"iotsphere/{device}/{metric}": max(
            ((one.at, one.order, one.value) for one in readings if one[1:3] == (device, metric)), default=None
        )
        for device in ("d1", "d2")
        for metric in "abc"
    }

    async def save(seed: int) -> None:
        mixed = random.Random(seed)
        shuffled = mixed.sample(readings, len(readings))
        while shuffled:
            size = mixed.randrange(1, 40)
            await store.save(shuffled[:size])
            shuffled = shuffled[size:]

    async with asyncio.timeout(300):
        await asyncio.gather(*map(save, range(4)))
    assert {one["_id"]: (int(one["at"].timestamp() * 1000), one["order"], one["value"]) for one in utc(shell)} == {
        key: value for key, value in expected.items() if value is not None
    }
    assert shell.history.count_documents({}) == len(readings)


def utc(shell: Mongo) -> list[dict[str, Any]]:
    """The latest values, with times that know their zone."""
    codec = shell.codec_options.with_options(tz_aware=True)
    return list(shell.latest.with_options(codec_options=codec).find())


async def test_history_goes_after_its_days_and_the_latest_stays(
    store: MongoTelemetry, database: MongoDatabase, shell: Mongo
) -> None:
    await store.save([reading(1)])
    assert shell.history.index_information()["expires"]["expireAfterSeconds"] == 7 * 86_400
    shell.history.update_one({}, {"$set": {"received": datetime(2020, 1, 1)}})
    await until(lambda: shell.history.count_documents({}) == 0, "what is old is removed")
    assert shell.latest.count_documents({}) == 1
    longer = MongoTelemetry(database.link, history_days=30)
    for _ in range(2):
        await longer.ensure()
    assert shell.history.index_information()["expires"]["expireAfterSeconds"] == 30 * 86_400


async def test_a_question_for_a_metric_walks_along_an_index(store: TelemetryStore, shell: Mongo) -> None:
    await store.save([reading(1)])
    which = {"domain": "iotsphere", "device": "pump-7", "metric": "temperature"}
    plan = shell.history.find(which).sort("at", -1).limit(10).explain()["queryPlanner"]["winningPlan"]
    assert plan["inputStage"]["inputStage"]["indexName"] == "by_metric", plan


async def test_a_closed_store_is_unavailable(store: TelemetryStore, database: MongoDatabase) -> None:
    await database.link.close()
    with pytest.raises(DatabaseUnavailable):
        await store.save([reading(1)])
