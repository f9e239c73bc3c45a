"""What a million devices need, worked out from what the parts of a round have measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BUSY = 0.5  # the share of a core that is planned for: the rest is for peaks and for a neighbour that has failed
CONNECTIONS_A_PROCESS = 10_000
GIB = 2.0**30
BYTES_A_MESSAGE = 400.0  # an envelope with a small payload, as the log holds it


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


FLEETS = (
    Fleet("1,000,000 meters, a reading every 15 minutes", 1_000_000, 900, 1),
    Fleet("1,000,000 sensors, a reading a minute", 1_000_000, 60, 1),
    Fleet("1,000,000 trackers, a position every 10 s, two watchers", 1_000_000, 10, 2),
)
HEADINGS = ("fleet", "messages/s", "ingress processes", "websocket processes", "Redis primaries", "log of a day, GiB")
COSTS = ("scale-out/ingress", "scale-out/websocket", "scale-out/redis")


def cores(rate: float, microseconds: float) -> float:
    """Cores for so many messages a second, each at this cost, none of them busier than planned."""
    return rate * microseconds / 1e6 / BUSY


def row(fleet: Fleet, figures: Mapping[str, float]) -> tuple[str, ...]:
    """The processes that a fleet needs. One process uses one core."""
    ingress, websocket, redis = (figures[name] for name in COSTS)
    for_work = math.ceil(cores(fleet.rate, ingress))
    for_connections = math.ceil(fleet.devices / CONNECTIONS_A_PROCESS)
    return (
        fleet.title,
        f"{fleet.rate:,.0f}",
        f"{max(for_work, for_connections):,} ({'connections' if for_connections > for_work else 'messages'} decide)",
        f"{math.ceil(cores(fleet.rate * fleet.deliveries, websocket)):,}",
        f"{math.ceil(cores(fleet.rate, redis)):,}",
        f"{fleet.rate * 86_400 * BYTES_A_MESSAGE / GIB:,.0f}",
    )


def sizing(figures: Mapping[str, float], fleets: Sequence[Fleet] = FLEETS) -> str:
    """The section of the page about scale; it says so when the round did not measure what it takes."""
    if any(name not in figures for name in COSTS):
        return "This round did not measure what the processes cost each: run `make bench`."
    ingress, websocket, redis = (figures[name] for name in COSTS)
    lines = [
        f"Measured costs, in microseconds of one core: ingress {ingress:.1f} a message, Redis {redis:.1f} a message, "
        f"websocket {websocket:.1f} a delivery.",
        *(
            [f"Memory: {figures['idle/mqtt/mib']:.1f} MiB for 1,000 idle devices, so "
             f"{figures['idle/mqtt/mib'] * CONNECTIONS_A_PROCESS / 1000:,.0f} MiB for a process full of them."]
            if "idle/mqtt/mib" in figures
            else []
        ),
        "",
        f"| {' | '.join(HEADINGS)} |",
        f"|{'---|' * len(HEADINGS)}",
        *(f"| {' | '.join(row(fleet, figures))} |" for fleet in fleets),
    ]  # fmt: skip
    return "\n".join(lines)
