"""The rows of the benchmark: which system, under which load."""

from __future__ import annotations

from dataclasses import dataclass

from .run import Load
from .subjects import Starter, iotsphere_embedded, iotsphere_on_redis, mosquitto_alone

DEVICES = 20


@dataclass(frozen=True, slots=True)
class Scenario:
    """A system, started once, and the loads that it is put under, by their names."""

    name: str
    title: str
    start: Starter
    loads: dict[str, Load]
    is_peer: bool = False


def scenarios(seconds: float, *, quick: bool) -> list[Scenario]:
    """All rows; ``seconds``: length of one run. A quick round leaves the less telling ones out."""

    def load(rate: float, message_format: str = "plain") -> Load:
        return Load(rate=rate, seconds=seconds, warmup=min(2.0, seconds / 4), format=message_format)

    logged = {"ceiling": load(0), "20,000/s": load(20_000), "10,000/s": load(10_000)}
    if not quick:
        logged |= {"5,000/s": load(5_000), "ceiling, full envelopes": load(0, "envelope")}
    pair = {"ceiling": load(0), "10,000/s": load(10_000)}
    return [
        Scenario("redis-logged", "Redis, `logged` (everysec)", iotsphere_on_redis("everysec", "logged"), logged),
        Scenario("redis-fsynced", "Redis, `fsynced` (always)", iotsphere_on_redis("always", "fsynced"), pair),
        Scenario("embedded", "embedded SQLite, `fsynced`", iotsphere_embedded(), pair),
        Scenario("mosquitto", "Mosquitto alone, nothing kept", mosquitto_alone, pair, is_peer=True),
    ]
