"""Measured telemetry that ships in packages, as readings of the log: four devices that begin together.

Hourly temperatures of two cities, those of the sea every half an hour, and blood glucose every five minutes, which
stops now and then for hours. Spikes, drifts and stuck values are planted into them, so that there is something to tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import pyarrow as pa

from bench.spark_alerts import FITTED, Series, measured, plant

from .readings import SCHEMA, Fleet

START_US = 1_772_323_200_000_000  # 2026-03-01, UTC
DEVICES: Mapping[str, tuple[str, str]] = {
    "seattle": ("temperature", "Cel"),
    "sf": ("temperature", "Cel"),
    "sea": ("temperature", "Cel"),
    "glucose": ("glucose", "mg/dL"),
}


def fleet(count: int) -> Fleet:
    """The first readings of each device, each a message of its own, in the order in which they were received."""
    series = {name: one for name, one in measured().items() if name in DEVICES}
    rows = [row for number, name in enumerate(DEVICES) for row in _rows(number, name, series[name], count)]
    rows.sort(key=lambda row: int(str(row[8])))
    columns: list[list[object]] = [list(column) for column in zip(*rows, strict=True)]
    offsets = [0] * len(DEVICES)
    for row, partition in enumerate(columns[12]):
        offsets[int(str(partition))] += 1
        columns[13][row] = offsets[int(str(partition))]
    table = pa.table([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA)
    return Fleet(table, table.slice(0, 0))


def _rows(number: int, name: str, series: Series, count: int) -> list[tuple[object, ...]]:
    metric, unit = DEVICES[name]
    made: list[tuple[object, ...]] = []
    values, _ = plant(series.values[:count], FITTED, seed=number)
    for index, (value, at) in enumerate(zip(values, series.at[:count], strict=True)):
        event = START_US + at - series.at[0]
        message = str(UUID(int=number << 64 | index))
        made.append(
            ("iotsphere", name, metric, value, None, None, unit, event, event + 1_000_000, -1_000, [], message, number, 0, 0)
        )  # fmt: skip
    return made
