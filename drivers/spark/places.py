"""Where reading begins and ends: words, times, cursors and offsets, all turned into one position per partition.

Offsets, as they lie in checkpoints: ``{"iotsphere/telemetry/0": [epoch, offset], …}``, each to be read after.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from ...adapters.cursor import positions_of
from ...adapters.timestamps import read_time
from ...entities.errors import CursorInvalid, RequestInvalid
from ...entities.position import Partition, Position
from ...use_cases.ports.log_ranges import LogRanges

Offsets = dict[str, list[int]]
Places = dict[Partition, Position]
_AGO: Final = re.compile(r"-([0-9]+(?:\.[0-9]+)?)(s|m|h|d)\Z")
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d\Z")
_UNITS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def resolve(ranges: LogRanges, partitions: Sequence[Partition], text: str, now: int) -> Places:
    """The positions that a text means.

    ``text``: ``earliest``, ``latest``, a time in ISO-8601 or a date (its midnight in UTC), a time ago such as ``-2h`` (s, m, h, d), a cursor of a
    subscription, or offsets as JSON. ``now``: ms since 1970. Raises RequestInvalid, CursorInvalid.
    """
    if text == "earliest":
        return {partition: beginning(ranges, partition) for partition in partitions}
    if text == "latest":
        return {partition: ranges.bounds(partition).last for partition in partitions}
    if (time := time_of(text, now)) is not None:
        return {partition: ranges.at(partition, time) for partition in partitions}
    known = places(_offsets(text)) if text.startswith("{") else _of_cursor(text)
    if missing := [str(partition) for partition in partitions if partition not in known]:
        raise RequestInvalid(
            f"{text[:60]!a} says nothing of {', '.join(missing)}: use one that was made for all of them"
        )
    for partition in partitions if text.startswith("{") else ():
        place, last = known[partition], ranges.bounds(partition).last
        if place.epoch == last.epoch and place.offset > last.offset:
            raise RequestInvalid(f"{partition} ends at offset {last.offset}: there is no {place.offset} yet")
    return {partition: known[partition] for partition in partitions}


def beginning(ranges: LogRanges, partition: Partition) -> Position:
    """The position before the first entry that is retained now; reading after it later tells what went since."""
    first = ranges.bounds(partition).first
    return Position(first.epoch, first.offset - 1)


def offsets(found: Mapping[Partition, Position]) -> Offsets:
    """Positions as JSON can hold them."""
    return {str(partition): [position.epoch, position.offset] for partition, position in sorted(found.items())}


def places(found: Mapping[str, Sequence[int]]) -> Places:
    """The positions of offsets. Raises RequestInvalid."""
    try:
        return {_partition(name): Position(int(epoch), int(offset)) for name, (epoch, offset) in found.items()}
    except (TypeError, ValueError) as error:
        raise RequestInvalid('offsets are written as {"DOMAIN/CHANNEL/NUMBER": [EPOCH, OFFSET], …}') from error


def shared(start: Mapping[Partition, Position], end: Mapping[Partition, Position], limit: int) -> Places:
    """Where to stop so that at most about ``limit`` messages lie between; each partition by its share of what waits."""
    waiting = {partition: max(0, end[partition].offset - start[partition].offset) for partition in end}
    total = sum(waiting.values())
    if total <= limit:
        return dict(end)
    stops: Places = {}
    for partition, count in waiting.items():
        share = max(1, limit * count // total) if count else 0
        stops[partition] = (
            start[partition] if not share else Position(end[partition].epoch, start[partition].offset + share)
        )
    return stops


def time_of(text: str, now: int) -> int | None:
    """The time (ms) that a text names, or None."""
    if _DAY.match(text):
        text += "T00:00:00Z"
    if ago := _AGO.match(text):
        return max(0, now - round(float(ago[1]) * _UNITS[ago[2]]))
    found = read_time(text)
    return None if found is None else found.time


def _of_cursor(text: str) -> Places:
    try:
        return dict(positions_of(text))
    except CursorInvalid as error:
        raise RequestInvalid(
            f"{text[:60]!a} is no place in the log: write earliest, latest, a date, an ISO time, a time ago such as -2h, a "
            "cursor, or offsets as JSON"
        ) from error


def _offsets(text: str) -> Mapping[str, Sequence[int]]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise RequestInvalid(f"these offsets are no JSON: {error}") from error
    if not isinstance(found, dict):
        raise RequestInvalid("offsets are a JSON object")
    return found


def _partition(name: str) -> Partition:
    domain, channel, number = name.split("/")
    return Partition(domain, channel, int(number))
