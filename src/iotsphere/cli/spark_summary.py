"""What a run of a job says at its end: what it did, how fast, what was lost, and where the results are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from ..logs import harmless
from .console import out

if TYPE_CHECKING:
    from ..containers.spark import Outlets
    from ..drivers.spark.runner import Plan, Runner


def summary(runner: Runner, plan: Plan, outlets: Outlets, *, seconds: float, lost: int) -> dict[str, Any]:
    """Names and values, in the order in which they are shown. ``seconds``: of the whole run, Spark's start among them.

    ``rate``: messages a second, over the time that batches took. ``lost``: messages that were gone and passed over.
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
        "checkpoint": str(plan.checkpoint) if plan.checkpoint else None,
    }
    return {name: value for name, value in found.items() if value is not None} | dict(sorted(progress.counts.items()))


def say(found: dict[str, Any], as_json: bool) -> None:
    """Print it on standard output: a line each, or all as one JSON object."""
    if as_json:
        print(json.dumps(found))
        return
    width = max(map(len, found))
    for name, value in found.items():
        shown = f"{value:,}" if isinstance(value, int) else str(value)
        out.print(
            f"[bold]{name.replace('_', ' '):<{width}}[/]  {escape(harmless(shown))}", highlight=False, soft_wrap=True
        )
