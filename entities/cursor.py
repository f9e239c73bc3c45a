"""Cursors: where a reader of several partitions stands, as a vector of positions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .position import Partition, Position


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last position read in each partition. ``scope`` names the filters and principal that it was made for."""

    scope: str
    positions: Mapping[Partition, Position]


def scope_of(identity: str, filters: Iterable[str]) -> str:
    """The scope text of a principal's subscription; the order of its filters does not matter."""
    return identity + "\n" + "\n".join(sorted(set(filters)))
