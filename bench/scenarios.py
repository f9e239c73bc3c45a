"""The rows of the benchmark: which system, under which load."""

from __future__ import annotations

from dataclasses import dataclass

from .peers import aedes_with_redis, fixed_packages, mosquitto_alone, nats_jetstream, rabbitmq_stream
from .run import Load
from .subjects import Starter, iotsphere_embedded, iotsphere_on_redis

DEVICES = 20
CEILING = "ceiling"
# Mosquitto acknowledges for the fixed packages whatever they manage, so no window finds their ceiling: more is offered
# than they can take, and what arrives while it is worked off is counted.
OFFERED = 4_000.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A system, started once a round, and the loads that it is put under, by their names.

    ``starts``: seconds that starting and stopping it takes, for the estimate of the remaining time. ``in_quick``:
    whether a quick round has it.
    """

    name: str
    title: str
    start: Starter
    loads: dict[str, Load]
    is_peer: bool = False
    starts: float = 3.0
    in_quick: bool = True


def scenarios(seconds: float, *, quick: bool) -> list[Scenario]:
    """All rows; ``seconds``: length of one run. A quick round leaves the less telling ones out."""

    def load(rate: float, message_format: str = "plain", share: float = 1.0) -> Load:
        return Load(rate=rate, seconds=seconds * share, warmup=min(2.0, seconds / 4), format=message_format)

    pair = {CEILING: load(0), "10,000/s": load(10_000)}
    logged = {CEILING: load(0), "20,000/s": load(20_000), "10,000/s": load(10_000)}
    if not quick:
        logged |= {"5,000/s": load(5_000), "full envelopes": load(0, "envelope")}
    peer_pair = {CEILING: load(0)} if quick else pair
    return [
        Scenario("redis-logged", "Redis, `logged` (everysec)", iotsphere_on_redis("everysec", "logged"), logged),
        Scenario("redis-fsynced", "Redis, `fsynced` (always)", iotsphere_on_redis("always", "fsynced"), pair),
        Scenario("embedded", "embedded SQLite, `fsynced`", iotsphere_embedded(), pair),
        Scenario("mosquitto", "Mosquitto alone, nothing kept", mosquitto_alone, pair, is_peer=True),
        Scenario("nats", "NATS JetStream to WebSocket", nats_jetstream, peer_pair, is_peer=True),
        Scenario("aedes", "aedes, Redis stream, ws", aedes_with_redis, peer_pair, is_peer=True),
        Scenario(
            "rabbitmq", "RabbitMQ, MQTT and a stream", rabbitmq_stream, {CEILING: load(0)}, True, 18, in_quick=False
        ),
        Scenario(
            "stock", "the fixed packages as documented", fixed_packages, {CEILING: load(OFFERED, share=0.5)}, True
        ),
    ]
