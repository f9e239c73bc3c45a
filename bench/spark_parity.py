"""`python -m bench.spark_parity`: each job, in batch and in stream, beside what others make of the same readings.

The others are DuckDB, and for alerts and health loops that remember everything (tests/support/truths.py). Alerts are
compared on ``--series`` of them, since such a loop is slow; all else on all readings.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import typer
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from bench.spark_rollup import METRICS
from iotsphere.drivers.spark.jobs import JOBS, Job, Run, anomaly, lake, load, quality, report
from iotsphere.drivers.spark.report.facts import Facts, gather
from iotsphere.drivers.spark.rollups.percentiles import ERROR
from iotsphere.drivers.spark.runner import CLOCK_BATCHES
from iotsphere.drivers.spark.schema import SPARK_SCHEMA
from iotsphere.drivers.spark.session import open_session
from iotsphere.drivers.spark.window import kept_in
from tests.support import truths
from tests.support.readings import Plan, pieces

SERIES: Final = 20
RANKS: Final = 0.001  # by this share of the readings Spark's percentiles may be off
AT_ONCE: Final = 1_000_000
OPTIONS: Final = {
    "health": {"battery": "temperature"},  # both logs have it, and it goes up and down
    "rollup": {"lateness_minutes": "240", "keep_minutes_days": "0"},
    "quality": {"days": "0", "every_s": "1e9"},
    "report": {"days": "0", "every_s": "1e9"},
}
LATEST: Final = (
    "(SELECT * FROM ours QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY batch DESC, messages DESC) = 1)"
)


class Parity(NamedTuple):
    """Rows that a job should come to, and how many of them are missing, other or too many."""

    rows: int
    wrong: int


@dataclass(frozen=True, slots=True)
class Case:
    """A job over the Parquet files of a folder, in stream a file a batch. ``folder``: for its results.

    ``series``: of so many alerts are compared.
    """

    spark: SparkSession
    name: str
    files: Path
    following: bool
    folder: Path
    series: int = SERIES

    @property
    def job(self) -> Job:
        """The job itself."""
        return load(self.name)

    def run(self, **given: str) -> Run:
        """How it is run."""
        options = self.job.settings(OPTIONS.get(self.name, {}) | given)
        return Run(options, "parity", self.following, self.folder / "out", str(self.folder))

    def work(self, keep: Callable[[DataFrame, int], object]) -> None:
        """Run the job's transform, in batch or in stream, and hand over what it makes."""
        run, job = self.run(), self.job
        if not self.following:
            keep(job.transform(self.spark.read.schema(SPARK_SCHEMA).parquet(str(self.files)), run), 0)
            return
        readings = self.spark.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(self.files))
        frame = job.transform(readings, run) if job.stateful else readings

        def each(part: DataFrame, number: int) -> None:
            keep(part if job.stateful else job.transform(part, run), number)

        stream = frame.writeStream.outputMode(job.mode).foreachBatch(each).trigger(availableNow=True)
        self.spark.conf.set(CLOCK_BATCHES, "false")  # as the runner does for what is to end
        try:
            stream.option("checkpointLocation", str(self.folder / "checkpoint")).start().awaitTermination()
        finally:
            self.spark.conf.unset(CLOCK_BATCHES)

    def to_parquet(self, frame: DataFrame, number: int) -> None:
        """Keep the rows of a batch as files."""
        frame.write.mode("overwrite").parquet(str(self.folder / "rows" / f"batch={number}"))


def check(case: Case) -> Parity:
    """Run a job, and compare."""
    with truths.opened(str(case.files / "*.parquet")) as connection:
        connection.execute(f"SET memory_limit = '4GB'; SET temp_directory = '{case.folder}/duckdb'")
        return CHECKS[case.name](case, connection)


def compared(
    connection: duckdb.DuckDBPyConnection, found: str, truth: str, keys: Sequence[str], values: dict[str, float]
) -> Parity:
    """Compare two queries. ``values``: columns, and by what share of the truth each may be off."""
    same = " AND ".join(f'o."{key}" IS NOT DISTINCT FROM t."{key}"' for key in keys)
    close = " AND ".join(
        f'(o."{name}" IS NOT DISTINCT FROM t."{name}"'
        + (f' OR coalesce(abs(o."{name}" - t."{name}") <= {share} * greatest(1, abs(t."{name}")), false))' if share else ")")
        for name, share in values.items()
    )  # fmt: skip
    connection.execute(f"CREATE OR REPLACE TEMP TABLE found AS SELECT *, 1 AS here FROM ({found})")
    connection.execute(f"CREATE OR REPLACE TEMP TABLE truth AS SELECT *, 1 AS here FROM ({truth})")
    wrong = f"""SELECT count(*) FROM found o FULL JOIN truth t ON {same}
        WHERE o.here IS NULL OR t.here IS NULL OR NOT ({close or "true"})"""
    return Parity(_one(connection, "SELECT count(*) FROM truth"), _one(connection, wrong))


def _one(connection: duckdb.DuckDBPyConnection, query: str) -> int:
    return int(connection.execute(query).fetchall()[0][0])


def _rows(case: Case, connection: duckdb.DuckDBPyConnection) -> None:
    """Run a job whose rows are all there is, and show them as the view ``ours``."""
    case.work(case.to_parquet)
    connection.execute(
        f"CREATE VIEW ours AS FROM read_parquet('{case.folder}/rows/*/*.parquet', hive_partitioning = true)"
    )


def _lake(case: Case, connection: duckdb.DuckDBPyConnection) -> Parity:
    run = case.run()
    case.work(lambda frame, number: case.job.write(frame, run, number))
    lake.maintain(run)
    connection.register("lake", DeltaTable(str(run.output)).to_pyarrow_dataset())
    one, other = truths.LAKE + truths.MARKED, truths.LAKE + "lake"
    apart = [f"SELECT count(*) FROM (({a}) EXCEPT ALL ({b}))" for a, b in ((one, other), (other, one))]
    return Parity(_one(connection, "SELECT count(*) FROM readings"), sum(_one(connection, query) for query in apart))


def _rollup(case: Case, connection: duckdb.DuckDBPyConnection) -> Parity:
    _rows(case, connection)
    keys = ("domain", "device_id", "metric", "resolution", "start")
    newest = LATEST.format(keys=", ".join(f'"{key}"' for key in keys)).replace("messages", "count")
    exact = dict.fromkeys(("count", "min", "max", "last", "untrusted"), 0.0) | dict.fromkeys(("sum", "mean"), 1e-9)
    # A percentile of DuckDB holds all values that it is of, so large logs are compared some devices at a time.
    shares = -(-_one(connection, "SELECT count(*) FROM readings") // AT_ONCE)
    parts = []
    for number in range(shares):
        mine = f"hash(device_id) % {shares} = {number}"
        theirs = truths.ROLLUP.replace("FROM readings WHERE", f"FROM readings WHERE {mine} AND")
        for where, share in (("= '1m'", 0.0), ("<> '1m'", ERROR * 1.001)):
            values = exact | dict.fromkeys(("p50", "p95", "p99"), share)
            found = f"SELECT * FROM ({newest}) WHERE resolution {where} AND {mine}"
            parts.append(
                compared(connection, found, f"SELECT * FROM ({theirs}) WHERE resolution {where}", keys, values)
            )
    return Parity(sum(part.rows for part in parts), sum(part.wrong for part in parts))


def _anomaly(case: Case, connection: duckdb.DuckDBPyConnection) -> Parity:
    _rows(case, connection)
    rule, old_us = anomaly.rule_of(case.run().options), int(case.run().options["old_s"]) * 1_000_000
    rows = connection.execute(
        f"""SELECT domain || '/' || device_id || '/' || metric AS series,
            list((filename, epoch_us(event_time), value, epoch_us(received_time)) ORDER BY
                {"filename," if case.following else ""} event_time, "offset", sample)
        FROM read_parquet('{case.files}/*.parquet', filename = true)
        WHERE value IS NOT NULL AND NOT list_contains(quality, 'clock_untrusted') AND series IN (
            SELECT DISTINCT domain || '/' || device_id || '/' || metric AS one FROM readings WHERE value IS NOT NULL
            ORDER BY hash(one), one LIMIT {case.series})
        GROUP BY 1 ORDER BY 1"""
    ).fetchall()
    expected = []
    for series, points in rows:
        taken = [(at, value, received - at <= old_us) for at, value, received in _onward(points)]
        expected += [(series, *change) for change in truths.alerts(taken, rule)]
    connection.register("expected", _table(("series", "change", "kind", "raised_at", "at"), expected, 3))
    connection.register("chosen", pa.table({"series": [series for series, _ in rows]}))
    found = """SELECT domain || '/' || device_id || '/' || metric AS series, change, kind, epoch_us(raised_at) AS raised_at,
        epoch_us("at") AS "at" FROM ours WHERE change <> 'met'"""
    found = f"SELECT * FROM ({found}) WHERE series IN (SELECT series FROM chosen)"
    return compared(connection, found, "SELECT * FROM expected", ("series", "change", "kind", "raised_at", "at"), {})


def _onward(points: Sequence[tuple[str, int, float, int]]) -> Iterator[tuple[int, float, int]]:
    """Those that are newer than all before them."""
    newest = -1
    for _, at, value, received in points:
        if at > newest:
            newest = at
            yield at, value, received


def _health(case: Case, connection: duckdb.DuckDBPyConnection) -> Parity:
    _rows(case, connection)
    names = ("device", "messages", "gaps", "gap_s", "cadence_s", "first", "newest", "uptime", "battery", "slope")
    expected = truths.health(connection, str(case.run().options["battery"]))
    connection.register("expected", _table(names, expected, 1))
    found = f"""SELECT domain || '/' || device_id AS device, messages, gaps, gap_s, cadence_s, epoch_us(first_event) AS first,
        epoch_us(last_event) AS newest, uptime, battery, battery_per_day AS slope
        FROM {LATEST.format(keys="domain, device_id")}"""
    return compared(connection, found, "SELECT * FROM expected", names[:1], dict.fromkeys(names[1:], 1e-9))


def _quality(case: Case, connection: duckdb.DuckDBPyConnection) -> Parity:
    run = case.run()
    case.work(lambda frame, number: case.job.write(frame, run, number))
    if case.following:
        quality.WINDOWED.tick(case.run(every_s="0"))
    kept = f"{run.output}/findings.parquet"
    findings = f"""(SELECT * REPLACE (epoch_us("at") AS "at") FROM read_parquet('{kept}'))"""
    found = f"""SELECT kind, device_id, metric, "at", count, value FROM {findings} WHERE kind <> 'hole' UNION ALL
        SELECT kind, NULL, NULL, NULL, sum(count), count(*) FROM {findings} WHERE kind = 'hole' GROUP BY kind"""
    keys = ("kind", "device_id", "metric", "at")
    return compared(connection, found, truths.QUALITY, keys, {"count": 0.0, "value": 1e-9})


def _report(case: Case, connection: duckdb.DuckDBPyConnection) -> Parity:
    run = case.run()
    case.work(lambda frame, number: case.job.write(frame, run, number))
    kept = case.spark.read.schema(SPARK_SCHEMA).parquet(str(case.files))
    if case.following:
        assert report.WINDOWED.tick(case.run(every_s="0"))["pages"] == 1
        kept = kept_in(run.output, 0.0).readings(case.spark)
    assert (run.output / report.FILE).stat().st_size > 10_000
    facts = gather(kept, case.spark.createDataFrame([], anomaly.RAW), quality.limits_of(case.run().options))
    assert facts is not None
    return _facts_agree(facts, connection)


def _facts_agree(facts: Facts, connection: duckdb.DuckDBPyConnection) -> Parity:
    flow = [(row["bucket"], row["readings"], row["flagged"], row["devices"]) for row in facts.flow]
    connection.register("flow", _table(("bucket", "readings", "flagged", "devices"), flow, 0))
    counts = dict.fromkeys(("readings", "flagged", "devices"), 0.0)
    parts = [compared(connection, "FROM flow", truths.FLOW.format(step=facts.step_s), ("bucket",), counts)]
    bands = [(row["metric"], bucket, *band) for row in facts.metrics for bucket, band in row["band"].items()]
    connection.register("bands", _table(("metric", "bucket", "low", "middle", "high"), bands, 1))
    near = truths.BANDS.format(step=facts.step_s, error=RANKS)
    parts.append(compared(connection, "SELECT *, true AS near FROM bands", near, ("metric", "bucket"), {"near": 0.0}))
    totals = """SELECT count(*), count(DISTINCT ("partition", "offset")), count(DISTINCT device_id), count(DISTINCT metric)
        FROM readings"""
    same = connection.execute(totals).fetchall()[0] == tuple(
        facts.totals[name] for name in ("readings", "messages", "devices", "metrics")
    )
    return Parity(1 + sum(part.rows for part in parts), sum(part.wrong for part in parts) + (not same))


def _status(case: Case, connection: duckdb.DuckDBPyConnection) -> Parity:
    _rows(case, connection)
    found = """SELECT domain, metric, sum(readings) AS readings, max(devices) AS devices, min(min) AS min, max(max) AS max,
        sum(mean * readings) / sum(readings) AS mean, max(newest) AS newest, sum(late) AS late FROM ours
        WHERE over_all = 0 GROUP BY domain, metric"""
    values = dict.fromkeys(("readings", "min", "max", "newest", "late"), 0.0) | {"mean": 1e-9}
    return compared(connection, found, truths.STATUS, ("domain", "metric"), values)


def _table(names: Sequence[str], rows: Sequence[Sequence[Any]], texts: int) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    kinds = [pa.string() if number < texts else None for number in range(len(names))]
    return pa.table({name: pa.array(column, kind) for name, column, kind in zip(names, columns, kinds, strict=True)})


CHECKS: Final[dict[str, Callable[[Case, duckdb.DuckDBPyConnection], Parity]]] = {
    "lake": _lake, "rollup": _rollup, "anomaly": _anomaly, "health": _health, "quality": _quality, "report": _report,
    "status": _status,
}  # fmt: skip


def main(
    rows: Annotated[int, typer.Option(help="Readings to make up.")] = 1_000_000,
    devices: int = 500,
    jobs: Annotated[str, typer.Option(help="Which jobs, with commas between.")] = ",".join(JOBS),
    series: Annotated[int, typer.Option(help="Of how many series alerts are compared.")] = SERIES,
) -> None:
    """Make readings up, run each job over them, and say how many rows are wrong."""
    folder, console, bad = Path(tempfile.mkdtemp(prefix="iotsphere-parity-")), Console(width=150), 0
    try:
        spark = open_session(
            "parity", "local[2]", {"spark.sql.shuffle.partitions": "4"}, folder / "spark", lasting=True
        )
        (folder / "log").mkdir()
        for number, fleet in enumerate(pieces(Plan(rows, devices, METRICS), -(-rows // 10))):
            pq.write_table(fleet.rows, folder / "log" / f"part-{number:05d}.parquet")
        for name in jobs.split(","):
            for following in (False, True):
                case = Case(spark, name, folder / "log", following, folder / f"{name}-{following}", series)
                begun, parity = time.perf_counter(), check(case)
                told = f"{name:8} {'stream' if following else 'batch':6} {parity.rows:>10,} rows, {parity.wrong} wrong"
                console.print(f"{told}; {time.perf_counter() - begun:.0f} s with the peer")
                bad += parity.wrong
                shutil.rmtree(case.folder, ignore_errors=True)
        spark.stop()
    finally:
        shutil.rmtree(folder)
    raise typer.Exit(bool(bad))


if __name__ == "__main__":
    typer.run(main)
