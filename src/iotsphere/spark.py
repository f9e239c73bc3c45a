"""Telemetry in notebooks: ``iotsphere.spark.telemetry(spark, log=…, from_="-2h")`` is a DataFrame of readings.

Needs the extra ``spark``: ``pip install 'iotsphere[spark]'``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .entities.errors import JobFailed, RequestInvalid
from .use_cases.ports.log_ranges import LogRanges

try:
    from .drivers.spark import places
    from .drivers.spark.source import LogSource, borders, read_options
except ModuleNotFoundError as error:
    package = str(error.name).partition(".")[0]
    raise ModuleNotFoundError(
        f"{package} is missing: pip install 'iotsphere[spark]', or '.[spark]' in a checkout", name=package
    ) from error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def open_ranges(log: str) -> LogRanges:
    """The ranges of a log by its address. Raises RequestInvalid for one that other processes cannot read."""
    kind, _, place = log.partition(":")
    if kind == "sqlite" and place:
        from .drivers.sqlite.ranges import SqliteRanges  # noqa: PLC0415  only what is read is imported

        return SqliteRanges(Path(place.removeprefix("//")) / "log")
    if kind in ("redis", "rediss", "unix"):
        from .drivers.redis.ranges import RedisRanges  # noqa: PLC0415  as above

        return RedisRanges(log)
    raise RequestInvalid(f"{log!a} is no log that Spark can read: write sqlite:FOLDER or redis://HOST:PORT/DB")


class IotSphereSource(LogSource):
    """The data source ``iotsphere``; each worker imports it from this package."""

    @staticmethod
    def opening(log: str) -> LogRanges:
        """The ranges of a log by its address."""
        return open_ranges(log)


def session(name: str = "iotsphere", master: str = "local[*]", **settings: str) -> SparkSession:
    """A Spark session that suits telemetry (UTC, Java found by itself) and knows the source ``iotsphere``.

    ``settings``: Spark's own, with ``_`` for ``.``. What Spark's processes print is in ``~/.cache/iotsphere/session.log``,
    so that a notebook shows results only. Raises RequestInvalid without a Java that Spark can use, and JobFailed when it
    does not start.
    """
    from .drivers.spark.java import CACHE  # noqa: PLC0415  a worker needs none of it
    from .drivers.spark.session import open_session  # noqa: PLC0415  as above

    said = CACHE / "session.log"
    try:
        spark = open_session(name, master, {key.replace("_", "."): value for key, value in settings.items()}, said=said)
    except JobFailed as error:
        raise JobFailed(f"{error.message}; what it said is in {said}") from error
    spark.dataSource.register(IotSphereSource)
    return spark


def telemetry(
    spark: SparkSession, *, log: str, from_: str = "earliest", to: str = "latest", **options: Any
) -> DataFrame:
    """The readings between two places of the log, which are settled now: the frame holds the same rows each time.

    ``log``: ``sqlite:FOLDER`` (the data folder of a gateway, which may be running) or ``redis://HOST:PORT/DB``.
    ``from_`` and ``to``: earliest, latest, an ISO time, a time ago such as ``-2h``, a cursor, or offsets as JSON.
    ``options``: further ones of the source, such as ``domain`` or ``channel``; see docs/reference/spark.md.
    Raises RequestInvalid, UnknownDomain, LogUnavailable.
    """
    spark.dataSource.register(IotSphereSource)
    texts = {name: _text(value) for name, value in options.items()}
    wanted = read_options({"log": log, "from": from_, "to": to, **texts})
    start, end = borders(open_ranges, wanted)
    settled = {"from": json.dumps(places.offsets(start)), "to": json.dumps(places.offsets(end))}
    return spark.read.format("iotsphere").options(log=log, **settled, **texts).load()


def telemetry_stream(spark: SparkSession, *, log: str, from_: str = "earliest", **options: Any) -> DataFrame:
    """The readings of the log from a place on, as a stream; a checkpoint's place wins over ``from_``."""
    spark.dataSource.register(IotSphereSource)
    texts = {name: _text(value) for name, value in options.items()}
    read_options({"log": log, "from": from_, **texts})
    return spark.readStream.format("iotsphere").options(**{"log": log, "from": from_, **texts}).load()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
