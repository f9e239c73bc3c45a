"""A made-up fleet whose faults are known: telemetry rows in Arrow, the same for the same plan, and the truth beside them.

Each device sends one message every ``period_s`` with one sample of each metric. Into that are planted: messages that
come late, twice, with a wild clock, with a value out of range, or not at all because the device was silent or because
the log lost them (then an offset is missing too). `Fleet.truth` names each of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

TIME: Final = pa.timestamp("us", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        pa.field("domain", pa.string(), nullable=False),
        pa.field("device_id", pa.string(), nullable=False),
        pa.field("metric", pa.string(), nullable=False),
        pa.field("value", pa.float64()),
        pa.field("value_text", pa.string()),
        pa.field("value_bool", pa.bool_()),
        pa.field("unit", pa.string()),
        pa.field("event_time", TIME, nullable=False),
        pa.field("received_time", TIME, nullable=False),
        pa.field("skew_ms", pa.int64()),
        pa.field("quality", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("sample", pa.int32(), nullable=False),
    ]
)
TRUTH: Final = pa.schema(
    [
        pa.field("fault", pa.string(), nullable=False),
        pa.field("device_id", pa.string(), nullable=False),
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("event_time", TIME, nullable=False),
    ]
)
FAULTS: Final = ("late", "duplicate", "untrusted", "out_of_range", "silent", "lost")
UNITS: Final = {"temperature": "Cel", "humidity": "%RH", "battery": "%", "energy": "Wh"}
NUMBERS: Final = tuple(UNITS)
WILD_MS: Final = 1_700_000_000_000  # a clock that stands in 1970
BURST: Final = 5  # a device is silent for so many messages at a time
OUT_OF_RANGE: Final = 9_999.0
US: Final = 1_000_000
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Plan:
    """What the fleet does: at least ``readings`` rows, and for each fault the share of messages that have it.

    ``metrics``: of temperature, humidity, battery, energy (a counter), status (text) and online (true or false).
    ``skew_ms``: clocks are wrong by up to so much. ``drift_ppm``: how fast the first device's clock runs.
    """

    readings: int = 20_000
    devices: int = 20
    metrics: tuple[str, ...] = ("temperature", "humidity", "battery", "energy", "status", "online")
    seed: int = 1
    start: datetime = datetime(2026, 3, 1, tzinfo=UTC)
    period_s: float = 60.0
    partitions: int = 4
    domain: str = "iotsphere"
    skew_ms: int = 500
    drift_ppm: float = 0.0
    late: float = 0.01
    duplicate: float = 0.01
    untrusted: float = 0.01
    out_of_range: float = 0.005
    silent: float = 0.01
    lost: float = 0.005

    @property
    def clean(self) -> Plan:
        """The same fleet without a fault."""
        return replace(self, late=0, duplicate=0, untrusted=0, out_of_range=0, silent=0, lost=0)


@dataclass(frozen=True, slots=True)
class Fleet:
    """``rows``: what a reader of the log gets, by received time. ``truth``: a row for each message with a fault."""

    rows: pa.Table
    truth: pa.Table

    def faulty(self, fault: str) -> pa.Table:
        """The truth on one fault."""
        return self.truth.filter(pc.equal(self.truth["fault"], fault))

    def write(self, folder: Path, files: int = 2) -> list[Path]:
        """Write the rows as Parquet files of about equal size, in order.

        A stream takes them by age, and those of the same millisecond the wrong way round, so each is a second younger.
        """
        folder.mkdir(parents=True, exist_ok=True)
        size = -(-len(self.rows) // files)
        paths = [folder / f"part-{number:05d}.parquet" for number in range(files)]
        for number, path in enumerate(paths):
            pq.write_table(self.rows.slice(number * size, size), path)
            os.utime(path, (number, number))
        return paths


def make(plan: Plan | None = None, **changes: Any) -> Fleet:
    """The fleet of a plan (or of the default plan with some changes), in one piece."""
    return _piece(replace(plan or Plan(), **changes), {})


def pieces(plan: Plan, rows: int = 1_000_000) -> Iterator[Fleet]:
    """The same kind of fleet in pieces of about ``rows`` readings, one after the other in time and offset."""
    offsets: dict[int, int] = {}
    left, start = plan.readings, plan.start.timestamp()
    for number in range(-(-plan.readings // rows)):
        begin = datetime.fromtimestamp(start, UTC)
        piece = replace(plan, readings=min(rows, left), seed=plan.seed * 1_000 + number, start=begin)
        yield _piece(piece, offsets)
        left -= rows
        start += _ticks(piece) * plan.period_s


def _ticks(plan: Plan) -> int:
    return max(1, -(-plan.readings // (plan.devices * len(plan.metrics))))


def _piece(plan: Plan, offsets: dict[int, int]) -> Fleet:
    """One piece; ``offsets`` holds the next offset of each partition and is taken further."""
    rng = np.random.default_rng(plan.seed)
    ticks, start = _ticks(plan), int(plan.start.timestamp() * US)
    count = ticks * plan.devices
    device = np.tile(np.arange(plan.devices), ticks)
    tick = np.repeat(np.arange(ticks), plan.devices)
    phase = np.random.default_rng(1).integers(0, int(plan.period_s * US * 0.9), plan.devices)
    skew = np.random.default_rng(2).integers(-plan.skew_ms, plan.skew_ms + 1, plan.devices) * 1_000
    sent = start + (tick * plan.period_s * US).astype(np.int64) + phase[device]  # by a right clock
    received = sent + rng.integers(5_000, 250_000, count)
    drift = np.where(device == 0, (sent - start) * plan.drift_ppm / 1e6, 0).astype(np.int64)
    event = sent + skew[device] + drift
    ids = _uuids(rng, count)
    wanted = {fault: _choose(rng, fault, getattr(plan, fault), tick, device) for fault in FAULTS}
    taken = np.zeros(count, dtype=bool)
    for fault in ("silent", "lost", "untrusted", "late", "duplicate", "out_of_range"):  # at most one for a message
        wanted[fault] &= ~taken
        taken |= wanted[fault]
    received = np.where(wanted["late"], received + rng.integers(1_800, 7_200, count) * US, received)
    clock = np.where(wanted["untrusted"], received - WILD_MS * 1_000, event)
    event = np.where(wanted["untrusted"], received, event)
    again = np.flatnonzero(wanted["duplicate"])
    order = np.concatenate((np.flatnonzero(~wanted["silent"]), again))
    came = np.concatenate((received[~wanted["silent"]], received[again] + rng.integers(700, 3_000, len(again)) * US))
    by_time = np.argsort(came, kind="stable")
    order, came = order[by_time], came[by_time]
    names = np.array([f"meter-{number:05d}" for number in range(plan.devices)])
    partition = np.array([crc32(name.encode()) % plan.partitions for name in names])[device[order]]
    offset = _offsets(partition, plan.partitions, offsets)
    read = ~wanted["lost"][order]
    messages = {
        "index": order[read], "device": device[order][read], "tick": tick[order][read], "received": came[read],
        "event": event[order][read], "skew": (clock[order][read] - came[read]) // 1_000,
        "partition": partition[read], "offset": offset[read],
    }  # fmt: skip
    marks = np.where(wanted["late"], 1, np.where(wanted["untrusted"], 2, 0))[messages["index"]]
    planted = [np.flatnonzero(wanted[fault]) for fault in FAULTS]
    which = np.concatenate(planted)
    truth = pa.table(
        [
            pa.array(np.repeat(FAULTS, [len(each) for each in planted]), pa.string()),
            pa.array(names[device[which]], pa.string()),
            ids.take(pa.array(which)),
            pa.array(event[which]).cast(TIME),
        ],
        schema=TRUTH,
    )
    bad = wanted["out_of_range"][messages["index"]]
    return Fleet(_rows(plan, messages, ids, marks, bad), truth)


def _choose(rng: np.random.Generator, fault: str, share: float, tick: Ints, device: Ints) -> npt.NDArray[np.bool_]:
    """The messages that have a fault. Silence comes in bursts; the first messages of a device are sound."""
    chosen = rng.random(len(tick)) < (share / BURST if fault == "silent" else share)
    if fault == "silent":
        chosen = chosen.reshape(-1, int(device.max()) + 1)
        chosen = np.any([np.roll(chosen, shift, axis=0) for shift in range(BURST)], axis=0).ravel()
    return np.asarray(chosen & (tick > 2) & (tick < tick.max()))


def _offsets(partition: Ints, partitions: int, offsets: dict[int, int]) -> Ints:
    """Dense offsets from 1, partition by partition, in the order of arrival."""
    made = np.zeros(len(partition), dtype=np.int64)
    for number in range(partitions):
        here = partition == number
        first = offsets.get(number, 1)
        made[here] = first + np.arange(here.sum())
        offsets[number] = first + int(here.sum())
    return made


def _uuids(rng: np.random.Generator, count: int) -> pa.Array:
    digits = np.frombuffer(rng.bytes(16 * count).hex().encode(), "S1").reshape(count, 32)
    text = np.full((count, 36), b"-", "S1")
    for start, end, at in ((0, 8, 0), (8, 12, 9), (12, 16, 14), (16, 20, 19), (20, 32, 24)):
        text[:, at : at + end - start] = digits[:, start:end]
    borders = np.arange(count + 1, dtype=np.int32) * 36
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(borders), pa.py_buffer(text)])


def _rows(plan: Plan, messages: dict[str, Ints], ids: pa.Array, marks: Ints, bad: npt.NDArray[np.bool_]) -> pa.Table:
    """One row for each metric of each message."""
    count, width = len(messages["index"]), len(plan.metrics)
    each = np.repeat(np.arange(count), width)
    metric = np.tile(np.arange(width), count)
    rng = np.random.default_rng(plan.seed + 1)
    hours = (messages["event"] / US / 3_600)[each]
    device = messages["device"][each]
    day = np.sin(hours / 24 * 2 * np.pi)
    noise = rng.normal(0, 1, len(each))
    shapes = {
        "temperature": 18 + device % 7 + 4 * day + 0.2 * noise,
        "humidity": 50 - 12 * day + noise,
        "battery": 100 - (hours - hours.min()) * 0.02 * (1 + device % 3),
        "energy": np.floor((hours - hours.min()) * 250 + device * 1_000),
    }
    value = np.zeros(len(each))
    for number, name in enumerate(plan.metrics):
        if name in shapes:
            value = np.where(metric == number, np.round(shapes[name], 3), value)
    if "temperature" in plan.metrics:
        value = np.where(bad[each] & (metric == plan.metrics.index("temperature")), OUT_OF_RANGE, value)
    of_metric = np.array(plan.metrics)
    is_number = np.isin(of_metric, NUMBERS)[metric]
    is_text, is_bool = (of_metric == "status")[metric], (of_metric == "online")[metric]
    quality = pa.array([[], ["late"], ["clock_untrusted"]], SCHEMA.field("quality").type)
    columns = [
        pa.repeat(plan.domain, len(each)),
        _words([f"meter-{number:05d}" for number in range(plan.devices)], device),
        _words(list(plan.metrics), metric),
        pa.array(value, pa.float64(), mask=~is_number),
        pc.if_else(pa.array(is_text), _words(["ok", "busy", "fault"], (noise > 1) * 1 + (noise > 2.5) * 1), None),
        pa.array(noise > -2, pa.bool_(), mask=~is_bool),
        _words([UNITS.get(name) for name in plan.metrics], metric),
        pa.array(messages["event"][each]).cast(TIME),
        pa.array(messages["received"][each]).cast(TIME),
        pa.array(messages["skew"][each]),
        quality.take(pa.array(marks[each])),
        ids.take(pa.array(messages["index"][each])),
        pa.array(messages["partition"][each].astype(np.int32)),
        pa.array(messages["offset"][each]),
        pa.repeat(pa.scalar(0, pa.int32()), len(each)),
    ]
    return pa.table(columns, schema=SCHEMA)


def _words(words: list[str | None] | list[str], index: Ints) -> pa.Array:
    return pa.array(words, pa.string()).take(pa.array(index))
