"""Rollups without Spark: readings given as plain values, rows got as dictionaries, in milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from iotsphere.drivers.spark.jobs.rollup import changed_rows
from iotsphere.drivers.spark.rollups.fold import Rules
from iotsphere.drivers.spark.rollups.points import DUPLICATE, UNTRUSTED
from iotsphere.drivers.spark.rollups.state import State

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
COLUMNS: Final = ("series", "at", "offset", "sample", "value", "identity", "flags", "received")
Key = tuple[str, str, int]  # series, resolution, start in µs


@dataclass(frozen=True, slots=True)
class Given:
    """A reading. ``at``, ``received``: µs; ``message``: its message, by default one of its own."""

    at: int
    value: float
    offset: int
    series: str = "iotsphere/d1/t"
    received: int | None = None
    sample: int = 0
    message: int | None = None
    untrusted: bool = False
    marked: bool = False


def table(readings: Iterable[Given]) -> pa.Table:
    rows = [
        (
            one.series,
            one.at,
            one.offset,
            one.sample,
            float(one.value),
            one.offset if one.message is None else one.message,
            UNTRUSTED * one.untrusted + DUPLICATE * one.marked,
            one.at if one.received is None else one.received,
        )
        for one in readings
    ]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(COLUMNS)
    kinds = (pa.string(), *[pa.int64()] * 3, pa.float64(), *[pa.int64()] * 3)
    return pa.table({name: pa.array(column, kind) for name, column, kind in zip(COLUMNS, columns, kinds, strict=True)})


def whole(readings: Iterable[Given], rules: Rules | None = None) -> dict[Key, dict[str, Any]]:
    """The rows of a batch run."""
    return _by_key(changed_rows(State(), rules or Rules(), table(readings), whole=True))


def streamed(
    batches: Iterable[Sequence[Given]], rules: Rules | None = None, state: State | None = None
) -> tuple[dict[Key, dict[str, Any]], State]:
    """What a store holds after batches, and the memory; which is turned into bytes and back after each."""
    state, rows = state or State(), {}
    for batch in batches:
        rows.update(_by_key(changed_rows(state, rules or Rules(), table(batch), whole=False)))
        state = State.load(state.dump())
    return rows, state


def micros(text: str) -> int:
    """2025-10-26T00:30Z as µs since 1970."""
    return int(datetime.fromisoformat(text).astimezone(UTC).timestamp()) * SECOND


def _by_key(rows: pa.Table) -> dict[Key, dict[str, Any]]:
    made = {}
    for row in rows.to_pylist():
        key = f"{row['domain']}/{row['device_id']}/{row['metric']}", row["resolution"], row["start"]
        assert key not in made
        made[key] = row
    return made
