"""The fleet's summary: what was told once of a range is not told again, in whatever words the range is named."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import SparkSession

from iotsphere.drivers.spark.jobs import Announcement, Run
from iotsphere.drivers.spark.jobs.status import JOB
from iotsphere.drivers.spark.runner import Plan, Runner
from iotsphere.drivers.spark.sinks.log import id_of
from iotsphere.spark import IotSphereSource
from tests.support.telemetry import fill_sqlite


def test_a_range_is_told_once_and_another_range_is_another_message(spark: SparkSession, tmp_path: Path) -> None:
    told: dict[str, int] = {}

    def announce(found: Iterable[Announcement]) -> int:
        fresh = {id_of((JOB.name, JOB.version), one): one.payload["readings"] for one in found}
        new = len(fresh.keys() - told.keys())
        told.update(fresh)
        return new

    def tell(
        start: str = "earliest", end: str = "latest", domain: str = "iotsphere", **options: str
    ) -> tuple[int, dict[str, list[int]]]:
        def make_run(application: str, following: bool) -> Run:
            return Run(JOB.settings(options), application, following, tmp_path, "", announce)

        source = {"log": log, "from": start, "to": end, "domain": domain}
        done = Runner(spark, Plan(JOB, source, make_run), IotSphereSource)()
        return done.counts["summaries"], dict(done.place)

    log = fill_sqlite(tmp_path, 300)
    new, place = tell()
    assert new == 1
    assert tell()[0] == 0
    fill_sqlite(tmp_path, 100, start=300)
    assert tell(end=json.dumps(place))[0] == 0
    assert tell(end=json.dumps(place), domain="*")[0] == 0
    assert tell()[0] == 1
    assert tell(start=json.dumps(place))[0] == 1
    assert tell(metrics="1")[0] == 1, "with other options it says something else"
    assert sorted(told.values()) == [100, 300, 400, 400]


# Without Spark


def test_a_domain_is_named_by_its_own_partitions_and_their_epochs() -> None:
    def named(**end: list[int]) -> str:
        places = {f"{domain}/telemetry/0": place for domain, place in end.items()}
        start = {name: [1, 0] for name in places}
        return Run({}, "fresh", False, Path(), "", borders=(start, places)).part("a", 0)

    assert named(a=[1, 7]) == named(a=[1, 7], b=[1, 9]) == named(a=[1, 7], ab=[1, 9])
    assert len({named(a=[1, 7]), named(a=[1, 8]), named(a=[2, 7])}) == 3


def test_a_batch_of_a_stream_is_named_by_its_checkpoint() -> None:
    assert Run({}, "status-1", True, Path(), "").part("a", 3) == "status-1/3"
