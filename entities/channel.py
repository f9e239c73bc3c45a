"""Channel settings: how many partitions, how durable, and how long messages are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

DAY_MS: Final = 24 * 3600 * 1000
GIB: Final = 1024**3


@dataclass(frozen=True, slots=True)
class Retention:
    """When entries of a partition may go.

    Past ``max_age`` (ms) or ``max_bytes`` they go unless a registered reader still needs them; past ``hard_age`` or
    ``hard_bytes`` they go all the same, and the loss is announced as a gap.
    """

    max_age: int = 7 * DAY_MS
    max_bytes: int = 1 * GIB
    hard_age: int = 30 * DAY_MS
    hard_bytes: int = 4 * GIB


@dataclass(frozen=True, slots=True)
class ChannelSpec:
    """A channel as it is made; ``partitions`` is fixed from then on and stored with it."""

    partitions: int
    retention: Retention = Retention()


DEFAULT_CHANNELS: Final[Mapping[str, ChannelSpec]] = {
    "telemetry": ChannelSpec(partitions=4),
    "shadow": ChannelSpec(partitions=2),
    "commands": ChannelSpec(partitions=2),
    "users": ChannelSpec(partitions=1),
    "system": ChannelSpec(partitions=1),
    "batch": ChannelSpec(partitions=1),
}
