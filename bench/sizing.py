"""What a million devices need, worked out from what the parts of a round have measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .scale_out import PROCESSES

BUSY = 500_000.0  # µs of a core in a second that are planned for: the rest is for peaks and for a neighbour that failed
FOLLOWING = BUSY / 2  # of these, what a process may spend on following the log
CONNECTIONS_A_PROCESS = 10_000
OTHERS = 3  # processes of a cell without doors for devices or clients: api, changes, processors
FOLLOWERS = 2 * PROCESSES + 2  # processes that follow the log in the part `scale-out`: an api and a follower as well
LEAST = 0.05  # µs; a difference of two measurements may come out as nothing
GIB = 2.0**30
BYTES_A_MESSAGE = 400.0  # an envelope with a small payload, as the log holds it
MOST_CELLS = 1_000
NEEDED = (
    "scale-out/ingress", "scale-out/websocket", "scale-out/redis", "scale-out/follower", "redis-logged/ceiling/redis",
)  # fmt: skip
HEADINGS = ("fleet", "messages/s", "cells", "ingress a cell", "websocket a cell", "log of a day, GiB")


@dataclass(frozen=True, slots=True)
class Costs:
    """Microseconds of one core. ``take``: ingress, for a message of its own devices. ``give``: websocket, for a delivery.

    ``follow``: any process, for each message of the whole log. ``write``: Redis, for a message; ``read``: Redis, for a
    message and process that follows.
    """

    take: float
    give: float
    follow: float
    write: float
    read: float


@dataclass(frozen=True, slots=True)
class Fleet:
    """``every``: seconds between two messages of a device. ``deliveries``: clients that get each message, on average."""

    title: str
    devices: int
    every: float
    deliveries: float

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.devices / self.every


@dataclass(frozen=True, slots=True)
class Cells:
    """So many logs of their own, each with so many processes. ``by_connections``: what decides their number."""

    count: int
    ingress: int
    websocket: int
    by_connections: bool


FLEETS = (
    Fleet("1,000,000 meters, a reading every 15 minutes", 1_000_000, 900, 1),
    Fleet("1,000,000 sensors, a reading a minute", 1_000_000, 60, 1),
    Fleet("1,000,000 trackers, a position every 10 s, two watchers", 1_000_000, 10, 2),
)


def costs_of(figures: Mapping[str, float]) -> Costs:
    """Take apart what was measured: every process of the part `scale-out` followed the whole log beside its work.

    The follower did nothing else, and Redis served one process in one run and six in another. Raises KeyError.
    """
    ingress, websocket, redis, follow, alone = (figures[name] for name in NEEDED)
    read = max(LEAST, (redis - alone) / (FOLLOWERS - 1))
    return Costs(
        take=max(LEAST, ingress - PROCESSES * follow),
        give=max(LEAST, websocket - follow),
        follow=max(LEAST, follow),
        write=max(LEAST, alone - read),
        read=read,
    )


def cells_for(fleet: Fleet, costs: Costs) -> Cells:
    """The least number of cells in which no process and no Redis is busier than planned. Raises ValueError for none."""
    for count in range(1, MOST_CELLS + 1):
        rate = fleet.rate / count
        if rate * costs.follow > FOLLOWING:
            continue
        left = BUSY - rate * costs.follow
        work = math.ceil(rate * costs.take / left)
        connections = math.ceil(fleet.devices / count / CONNECTIONS_A_PROCESS)
        ingress = max(work, connections)
        websocket = math.ceil(rate * fleet.deliveries * costs.give / left)
        if rate * (costs.write + (ingress + websocket + OTHERS) * costs.read) <= BUSY:
            return Cells(count, ingress, websocket, connections > work)
    raise ValueError(f"{fleet.title}: more than {MOST_CELLS} cells")


def row(fleet: Fleet, costs: Costs) -> tuple[str, ...]:
    """The fleet as texts."""
    cells = cells_for(fleet, costs)
    return (
        fleet.title,
        f"{fleet.rate:,.0f}",
        f"{cells.count:,}",
        f"{cells.ingress:,}, for {'connections' if cells.by_connections else 'messages'}",
        f"{cells.websocket:,}",
        f"{fleet.rate * 86_400 * BYTES_A_MESSAGE / GIB:,.0f}",
    )


def sizing(figures: Mapping[str, float], fleets: Sequence[Fleet] = FLEETS) -> str:
    """The section of the page about scale; it says so when the round did not measure what it takes."""
    if any(name not in figures for name in NEEDED):
        return "This round did not measure what the processes cost each: run `make bench`."
    costs = costs_of(figures)
    lines = [
        "| cost, µs of one core | measured |",
        "|---|---|",
        f"| `take`: an ingress process, for a message of its own devices | {costs.take:.1f} |",
        f"| `give`: a websocket process, for a delivery | {costs.give:.1f} |",
        f"| `follow`: every process, for each message of the whole log | {costs.follow:.1f} |",
        f"| `write`: Redis, for a message | {costs.write:.1f} |",
        f"| `read`: Redis, for a message and process | {costs.read:.1f} |",
        "",
    ]
    if "idle/mqtt/mib" in figures:
        full = figures["idle/mqtt/mib"] * CONNECTIONS_A_PROCESS / 1000
        lines += [f"{CONNECTIONS_A_PROCESS:,} idle devices take {full:,.0f} MiB of an ingress process.", ""]
    lines += [f"| {' | '.join(HEADINGS)} |", f"|{'---|' * len(HEADINGS)}"]
    lines += [f"| {' | '.join(row(fleet, costs))} |" for fleet in fleets]
    return "\n".join(lines)
