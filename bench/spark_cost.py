"""What work in Spark costs. Seconds by the clock depend on who else uses the machine; CPU seconds do so less."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds by the clock, and CPU seconds of this process and all that it started."""

    wall: float
    cpu: float

    def told(self, rows: int) -> str:
        """For people."""
        per_million = self.per_million(rows)
        return f"{self.wall:.1f} s, {rows / self.wall:,.0f} rows/s; {per_million:.1f} CPU s per million rows"

    def per_million(self, rows: int) -> float:
        """CPU seconds for a million rows."""
        return self.cpu / rows * 1e6


def cost_of(work: Callable[[], None]) -> Cost:
    """What some work costs."""
    wall, cpu = time.perf_counter(), cpu_of_all()
    work()
    return Cost(time.perf_counter() - wall, cpu_of_all() - cpu)


def cpu_of_all() -> float:
    """CPU seconds of this process and all that it started."""
    me = psutil.Process()
    used = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        used += times.user + times.system + (times.children_user + times.children_system) * (process != me)
    return used
