"""What a rollup remembers from batch to batch, as columns, and as bytes for Spark's state store."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ....entities.analytics.counter import CounterState
from .aggregates import Aggregates, no_aggregates
from .percentiles import Histogram
from .points import Ints, Points, no_points

FORMAT: Final = 1
NEVER: Final = np.iinfo(np.int64).min // 2
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")


def _none() -> Ints:
    return np.empty(0, np.int64)


@dataclass(slots=True)
class State:
    """The memory of many series.

    ``names``: domain, device and metric with ``/`` between. ``high``: the newest time that a trusted clock told,
    ``heard``: when it was last heard of, ``frontier``: what is older is late. ``points``: what is not older.
    ``open`` and ``bins``: what older points of hours and days that are not over came to. ``late``: counts by day.
    ``carries``: where counters stood at the frontier, by index.
    """

    names: list[str] = field(default_factory=list)
    high: Ints = field(default_factory=_none)
    heard: Ints = field(default_factory=_none)
    frontier: Ints = field(default_factory=_none)
    points: Points = field(default_factory=no_points)
    open: Aggregates = field(default_factory=no_aggregates)
    bins: Histogram = field(default_factory=lambda: Histogram(_none(), _none(), _none()))
    late: Aggregates = field(default_factory=no_aggregates)
    carries: dict[int, CounterState] = field(default_factory=dict)

    def indexes(self, names: list[str]) -> Ints:
        """The indexes of series, which are taken in where they are new."""
        known = {name: index for index, name in enumerate(self.names)}
        found = np.array([known.setdefault(name, len(known)) for name in names], np.int64)
        added = len(known) - len(self.names)
        self.names = list(known)
        for column in ("high", "heard", "frontier"):
            setattr(self, column, np.append(getattr(self, column), np.full(added, NEVER, np.int64)))
        return found

    def forget(self, gone: Any) -> None:
        """Drop series; ``gone``: a mask over them."""
        kept = ~gone
        renumbered = np.cumsum(kept) - 1
        self.names = [name for name, stays in zip(self.names, kept, strict=True) if stays]
        self.high, self.heard, self.frontier = self.high[kept], self.heard[kept], self.frontier[kept]
        self.carries = {int(renumbered[index]): carry for index, carry in self.carries.items() if kept[index]}
        points = self.points.take(kept[self.points.series])
        self.points = points._replace(series=renumbered[points.series])
        late = self.late.take(kept[self.late.series])
        self.late = late._replace(series=renumbered[late.series])
        self.keep_open(kept[self.open.series])
        self.open = self.open._replace(series=renumbered[self.open.series])

    def keep_open(self, kept: Any) -> None:
        """Drop open groups that are not in the mask, and their bins."""
        renumbered = np.cumsum(kept) - 1
        bins = self.bins.take(kept[self.bins.group])
        self.bins = bins._replace(group=renumbered[bins.group])
        self.open = self.open.take(kept)

    def dump(self) -> bytes:
        """Turn it into bytes."""
        carries = [
            json.dumps(astuple(self.carries[index])) if index in self.carries else None
            for index in range(len(self.names))
        ]
        series = {
            "name": pa.array(self.names, pa.string()),
            "high": self.high,
            "heard": self.heard,
            "frontier": self.frontier,
            "carry": pa.array(carries, pa.string()),
        }
        kept = (self.points._asdict(), self.open._asdict(), self.bins._asdict(), self.late._asdict())
        out = io.BytesIO()
        out.write(bytes((FORMAT,)))
        for columns in (series, *kept):
            _write(out, columns)
        return out.getvalue()

    @classmethod
    def load(cls, stored: bytes | None) -> State:
        """Turn the bytes back; None is an empty memory. Raises ValueError for another format."""
        if not stored:
            return cls()
        if stored[0] != FORMAT:
            raise ValueError(f"the state has format {stored[0]}, not {FORMAT}: start a new checkpoint")
        source = io.BytesIO(stored)
        source.seek(1)
        series, points, groups, bins, late = (pa.ipc.open_stream(source).read_all() for _ in range(5))
        carries = {
            index: CounterState(*json.loads(carry))
            for index, carry in enumerate(series["carry"].to_pylist())
            if carry is not None
        }
        return cls(
            names=series["name"].to_pylist(),
            high=_array(series, "high"),
            heard=_array(series, "heard"),
            frontier=_array(series, "frontier"),
            points=Points(*(_array(points, name) for name in Points._fields)),
            open=Aggregates(*(_array(groups, name) for name in Aggregates._fields)),
            bins=Histogram(*(_array(bins, name) for name in Histogram._fields)),
            late=Aggregates(*(_array(late, name) for name in Aggregates._fields)),
            carries=carries,
        )


def _write(out: io.BytesIO, columns: Mapping[str, Any]) -> None:
    table = pa.table(
        {name: column if isinstance(column, pa.Array) else pa.array(column) for name, column in columns.items()}
    )
    with pa.ipc.new_stream(out, table.schema, options=_OPTIONS) as writer:
        writer.write_table(table)


def _array(table: pa.Table, name: str) -> Any:
    return table[name].to_numpy()
