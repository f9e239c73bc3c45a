"""What a run of a job says at its end: what it did, how fast, what was lost, and where the results are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rich.markup import escape

from ..logs import harmless
from .console import out

if TYPE_CHECKING:
    from ..containers.spark import Outlets
    from ..drivers.spark.runner import Plan, Runner

# What a count means, where its name alone does not say it to somebody who sees it for the first time.
MEANINGS: Final[Mapping[str, str]] = {
    "rate": "messages a second, over the time that batches took",
    "lag": "messages that waited at the end",
    "lost": "messages that were gone from the log, and passed over",
    "known": "rows that were there already",
    "files": "files written",
    "joined": "small files made into larger ones",
    "marked": "rows of messages that were sent twice",
    "removed": "files with nothing but readings that are too old",
    "sorted": "dates that were over, brought into order",
    "vacuumed": "files deleted that no longer belonged to the table",
    "looks": "times that the whole window was looked at; the counts are of the last one",
    "pages": "times that the page was written",
    "left_out": "findings for which the table has no room",
    "raised": "alerts",
    "cleared": "alerts",
    "told": "alerts and clearings published",
    "untold": "alerts and clearings of the past, kept and not published",
    "zones_unused": "patterns of zones that fit no device",
}


def summary(runner: Runner, plan: Plan, outlets: Outlets, *, seconds: float, lost: int) -> dict[str, Any]:
    """Names and values, in the order in which they are shown. ``seconds``: of the whole run, Spark's start among them.

    ``lost``: messages that were gone and passed over.
    """
    progress, output = runner.progress, outlets.output
    found: dict[str, Any] = {
        "job": plan.job.name,
        "ended": "stopped on request" if runner.stopped and runner.in_batches else "done",
        "messages": progress.messages,
        "rows": progress.rows or None,
        "batches": progress.batches,
        "rate": round(progress.pace),
        "seconds": round(seconds, 1),
        "lag": progress.lag,
        "lost": lost or None,
        "output": str(output) if output.exists() else None,
        "documents": f"{plan.job.documents} in {outlets.documents}" if plan.job.documents else None,
        "page": str(output / plan.job.page) if plan.job.page and (output / plan.job.page).exists() else None,
        "topic": _topic(plan) if progress.counts["summaries"] or progress.counts["told"] else None,
        "checkpoint": str(plan.checkpoint) if plan.checkpoint else None,
    }
    return {name: value for name, value in found.items() if value is not None} | dict(sorted(progress.counts.items()))


def _topic(plan: Plan) -> str:
    """Where the job told what it found; ``+`` for the domain where there are several."""
    domain = str(plan.source["domain"])
    return f"{'+' if set(domain) & set('*,') else domain}/devices/batch/{plan.job.topic}"


def say(found: dict[str, Any], as_json: bool) -> None:
    """Print it on standard output: a line each with what it means, or all as one JSON object."""
    if as_json:
        print(json.dumps(found))
        return
    width = max(map(len, found))
    for name, value in found.items():
        shown = f"{value:,}" if isinstance(value, int) else str(value)
        meaning = f"  [dim]{MEANINGS[name]}[/]" if name in MEANINGS else ""
        line = f"[bold]{name.replace('_', ' '):<{width}}[/]  {escape(harmless(shown))}{meaning}"
        out.print(line, highlight=False, soft_wrap=True)
