"""How the ceiling changes with partitions, connections, filters, payload size and the length of the log."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from .catch_up import fill
from .filters import held
from .part import Scale, per_message
from .plot import Chart, svg
from .report import faults, total_faults
from .run import Load, Result, measure
from .section import Section
from .subjects import iotsphere_on_redis

PICTURE = "../pictures/growth.svg"
CAPTION = "Messages a second against partitions, connections, filters, payload and length of the log"
IN_FLIGHT = 1_000  # over all devices, whatever their number
LENGTH = 2.0
DEVICES = 20
PARTITIONS = (1, 2, 4, 8, 16, 32)
CONNECTIONS = (10, 100, 500, 2_000)
FILTERS = (0, 100, 1_000, 10_000)
PAYLOADS = (0, 200, 1_000, 4_000, 8_000)
LENGTHS = (0, 100_000, 500_000, 1_000_000)
HEADINGS = ("what grows", "to", "messages/s", "gateway CPU µs a message", "lost / reordered / duplicated")
BARE = 48  # bytes of a payload without padding


@dataclass(frozen=True, slots=True)
class Point:
    """One run: what grew, and to which value."""

    dimension: str
    value: float
    run: Result


DIMENSIONS = {
    "partitions": "partitions of the channel",
    "connections": "devices connected",
    "filters": "wildcard filters held by others",
    "payload": "bytes of payload",
    "log length": "messages in the log",
}


def seconds(_: Scale) -> float:
    """What this part takes."""
    points = len(PARTITIONS) + len(CONNECTIONS) + len(FILTERS) + len(PAYLOADS) + len(LENGTHS)
    return points * (LENGTH + 1) + 2 * (len(PARTITIONS) + len(CONNECTIONS)) + LENGTHS[-1] / 20_000 + 10


async def growth(_: Scale, folder: Path) -> Section:
    """Grow one thing after the other, all else as it is."""
    points = [
        *await _restarted("partitions", PARTITIONS, folder),
        *await _restarted("connections", CONNECTIONS, folder),
        *await _in_one(folder),
        *await _longer(folder),
    ]
    return table(points)


def load_for(devices: int) -> Load:
    """The ceiling, with the same number of messages in flight for any number of devices."""
    return Load(0, LENGTH, warmup=0.3, window=max(1, IN_FLIGHT // devices))


async def _restarted(dimension: str, values: tuple[int, ...], folder: Path) -> list[Point]:
    points = []
    for value in values:
        home = folder / f"{dimension}-{value}"
        home.mkdir()
        devices = value if dimension == "connections" else DEVICES
        start = iotsphere_on_redis("everysec", "logged", value if dimension == "partitions" else None)
        async with start(home, devices) as subject:
            run = await measure(subject, load_for(devices), home)
            await subject.check_ledger(run.acked)
        points.append(Point(dimension, value, run))
    return points


async def _in_one(folder: Path) -> list[Point]:
    """Filters and payloads need no other gateway."""
    points = []
    async with iotsphere_on_redis("everysec", "logged")(folder / "one", DEVICES) as subject:
        for count in FILTERS:
            async with AsyncExitStack() as stack:
                if count:
                    await stack.enter_async_context(held(subject.running, count))
                points.append(Point("filters", count, await measure(subject, load_for(DEVICES), folder)))
        for pad in PAYLOADS:
            run = await measure(subject, replace(load_for(DEVICES), pad=pad), folder)
            points.append(Point("payload", BARE + pad, run))
        await subject.check_ledger(sum(point.run.acked for point in points))
    return points


async def _longer(folder: Path) -> list[Point]:
    """Each point is measured on top of all messages before it."""
    points: list[Point] = []
    length = 0
    async with iotsphere_on_redis("everysec", "logged")(folder / "long", DEVICES) as subject:
        for wanted in LENGTHS:
            if wanted > length:
                length += (await fill(subject, wanted - length, folder))[0]
            run = await measure(subject, load_for(DEVICES), folder)
            points.append(Point("log length", length, run))
            length += run.acked
        await subject.check_ledger(length)
    return points


def charts(points: list[Point]) -> list[Chart]:
    """One chart for each thing that grows."""
    return [
        Chart(name, label, tuple((point.value, point.run.rate) for point in points if point.dimension == name))
        for name, label in DIMENSIONS.items()
    ]


def table(points: list[Point]) -> Section:
    """One row a point, and what the last point of each is of the first."""
    cells = tuple(
        (
            point.dimension,
            f"{point.value:,.0f}",
            f"{point.run.rate:,.0f}",
            f"{per_message(point.run):.1f}",
            faults([point.run]),
        )
        for point in points
    )
    notes = []
    for name in DIMENSIONS:
        own = [point for point in points if point.dimension == name]
        if own:
            ratio = own[-1].run.rate / own[0].run.rate
            notes.append(f"{name}, from {own[0].value:,.0f} to {own[-1].value:,.0f}: {ratio:.2f} × the messages/s.")
    runs = [point.run for point in points]
    return Section(
        "growth",
        "Growth",
        HEADINGS,
        cells,
        tuple(notes),
        {"faults": total_faults(runs)},
        frozenset(number for number, run in enumerate(runs) if not run.is_clean),
        not all(run.is_clean for run in runs),
        tuple(run.others / run.seconds for run in runs),
        [{"dimension": point.dimension, "value": point.value, "run": point.run.as_json()} for point in points],
        (PICTURE, CAPTION, svg(charts(points), CAPTION)),
    )
