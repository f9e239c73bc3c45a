"""The speeds that the gateway is to reach, beside what a round found: reached or not, and by how much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .section import Section


@dataclass(frozen=True, slots=True)
class Target:
    """``figure``: the name under which a section leaves the number. ``limit``: at least, or at most, this much."""

    what: str
    figure: str
    limit: float
    at_least: bool = False
    unit: str = ""

    def reached(self, value: float) -> bool:
        """Whether this is enough."""
        return value >= self.limit if self.at_least else value <= self.limit

    def verdict(self, value: float) -> str:
        """Yes, or how far it is off."""
        if self.reached(value):
            return "yes"
        if not self.limit:
            return "**no**"
        ratio = value / self.limit
        return f"**no**, {ratio:.0%} of it" if self.at_least else f"**no**, {ratio:.1f} times it"

    def text(self, value: float) -> str:
        """A number with the target's unit."""
        number = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
        return f"{number}{self.unit}"


def at_least(what: str, figure: str, limit: float, unit: str = "") -> Target:
    """A target that more is better for."""
    return Target(what, figure, limit, at_least=True, unit=unit)


def at_most(what: str, figure: str, limit: float, unit: str = "") -> Target:
    """A target that less is better for."""
    return Target(what, figure, limit, unit=unit)


TARGETS = (
    at_most("lost, reordered, duplicated or invented, in all rows of the gateway", "faults", 0),
    at_least("Redis `logged`: ceiling", "redis-logged/ceiling/rate", 40_000, "/s"),
    at_least("Redis `logged`: ceiling against Mosquitto alone", "redis-logged/mosquitto", 1.8, " ×"),
    at_least("Redis `logged`: ceiling against NATS JetStream", "redis-logged/nats", 2.5, " ×"),
    at_least("Redis `logged`: ceiling against the fixed packages", "redis-logged/stock", 25, " ×"),
    at_most("Redis `logged`: p50 at 10,000/s", "redis-logged/10,000/s/p50", 1, " ms"),
    at_most("Redis `logged`: p99 at 10,000/s", "redis-logged/10,000/s/p99", 5, " ms"),
    at_most("Redis `logged`: p99 at 20,000/s", "redis-logged/20,000/s/p99", 15, " ms"),
    at_least("Redis `fsynced`: ceiling", "redis-fsynced/ceiling/rate", 20_000, "/s"),
    at_most("Redis `fsynced`: p99 at 10,000/s", "redis-fsynced/10,000/s/p99", 25, " ms"),
    at_least("embedded: ceiling", "embedded/ceiling/rate", 20_000, "/s"),
    at_most("embedded: p99 at 10,000/s", "embedded/10,000/s/p99", 25, " ms"),
    at_most("fan-out, 1,000/s to 100 clients: the gateway's share of a core", "fan-out/share", 40, " %"),
    at_least("fan-out: deliveries a core against `broadcast()`, 10 frames waiting", "fan-out/broadcast", 8, " ×"),
    at_most("10,000 wildcard filters: throughput that they cost", "filters/cost", 10, " %"),
    at_most("idle: memory for 1,000 WebSocket connections", "idle/websocket/mib", 16, " MiB"),
    at_most("idle: memory for 1,000 MQTT connections", "idle/mqtt/mib", 10, " MiB"),
    at_least("idle: WebSocket connections held", "idle/websocket/held", 10_000),
    at_least("idle: MQTT connections held", "idle/mqtt/held", 10_000),
    at_least("catch-up: a reader 1,000,000 messages behind", "catch-up/rate", 100_000, "/s"),
    at_most("catch-up: the others' p99 meanwhile, against their usual", "catch-up/others", 2, " ×"),
    at_least("Spark: the lake as a stream from Redis", "spark/lake", 35_000, " rows/s"),
    at_least("Spark: the rollup as a stream into MongoDB", "spark/rollup", 15_000, " rows/s"),
    at_most("Spark: the rollup of 5,000,000 readings against DuckDB", "spark/duckdb", 3, " × its time"),
    at_most("soak: memory at the end against the second minute", "soak/memory", 1.1, " ×"),
    at_most("soak: p99 of the worst minute against the median minute", "soak/p99", 2, " ×"),
)

HEADINGS = ("what", "target", "measured", "reached")


def against_targets(figures: Mapping[str, float]) -> Section:
    """The table of targets. Those that the round did not measure are named below it."""
    measured = [(target, figures[target.figure]) for target in TARGETS if target.figure in figures]
    cells = tuple(
        (
            target.what,
            f"{'≥' if target.at_least else '≤'} {target.text(target.limit)}",
            target.text(value),
            target.verdict(value),
        )
        for target, value in measured
    )
    missed = frozenset(number for number, (target, value) in enumerate(measured) if not target.reached(value))
    missing = [target.what for target in TARGETS if target.figure not in figures]
    absent = [f"Not measured in this round: {'; '.join(missing)}."] if missing else []
    reached = f"{len(measured) - len(missed)} of {len(measured)} targets reached."
    return Section("targets", "Targets", HEADINGS, cells, (reached, *absent), faulty=missed)
