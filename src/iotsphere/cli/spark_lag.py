"""Where the jobs stand that have a checkpoint: what waits for each, and how long until retention passes it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..entities.errors import RequestInvalid
from .console import err

if TYPE_CHECKING:
    from ..settings import Settings

BEHIND: Final = 5
GONE: Final = 3
DAY_MS: Final = 86_400_000


def show(settings: Settings, job: str | None, checkpoint: Path | None, as_json: bool) -> int:
    """Print a line for each job, and return the exit code: 3 where messages are gone, 5 where a job is far behind.

    Raises RequestInvalid where there is no checkpoint, and LogUnavailable.
    """
    where = settings.data.resolve() / "spark"
    folders = [checkpoint] if checkpoint is not None else sorted(where.glob(job or "*"))
    found = list(_found(settings, folders))
    if not found:
        raise RequestInvalid(
            f"there is no checkpoint{f' of {job}' if job else ''} in {checkpoint or where}: begin one with iotsphere spark "
            f"{job or 'JOB'} --follow, or name it with --checkpoint"
        )
    for facts in found:
        if as_json:
            print(json.dumps(facts))
            continue
        print(_line(facts))
    behind = [facts["job"] for facts in found if facts["behind"]]
    gone = [facts["job"] for facts in found if facts["gone"]]
    if gone and not as_json:
        err.print(f"{', '.join(gone)}: messages went unread; the next run says which ones", style="red", markup=False)
    elif behind and not as_json:
        err.print(
            f"{', '.join(behind)}: more than half of the time is over; start or speed up the job, or raise "
            "IOTSPHERE_RETENTION_DAYS and _GIB",
            style="yellow", markup=False,
        )  # fmt: skip
    return GONE if gone else BEHIND if behind else 0


def _found(settings: Settings, folders: list[Path]) -> Iterator[dict[str, Any]]:
    from ..containers.spark import log_of
    from ..drivers.spark import checkpoints
    from ..drivers.spark.standing import standing
    from ..spark import open_ranges

    now = time.time_ns() // 1_000_000
    with open_ranges(log_of(settings)) as ranges:
        for folder in folders:
            if not any(folder.glob("[0-9]*-v[0-9]*")) or (known := checkpoints.generation(folder)) is None:
                continue
            location, note = known
            facts: dict[str, Any] = {"job": note.job, "checkpoint": str(folder), "running": checkpoints.is_used(folder)}
            place = checkpoints.recorded(location)
            if place is None:
                yield {**facts, "waiting": None, "age_s": 0, "left_s": None, "gone": 0, "behind": False}
                continue
            where = standing(ranges, place, now, round(settings.retention_days * DAY_MS))
            yield {
                **facts,
                "waiting": where.waiting,
                "age_s": where.age_ms // 1_000,
                "left_s": None if where.left_ms is None else where.left_ms // 1_000,
                "gone": where.lost,
                "behind": where.is_behind,
            }


def _line(facts: dict[str, Any]) -> str:
    parts = [f"{facts['job']:<8}", "running" if facts["running"] else "stopped"]
    if facts["waiting"] is None:
        return "  ".join([*parts, "nothing is done yet"])
    parts.append(f"{facts['waiting']:,} waiting")
    if facts["waiting"]:
        parts.append(f"the oldest for {_span(facts['age_s'])}")
        parts.append(f"{_span(facts['left_s'])} until it goes")
    if facts["gone"]:
        parts.append(f"{facts['gone']:,} gone unread")
    return "  ".join(parts)


def _span(seconds: int) -> str:
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds} s"
