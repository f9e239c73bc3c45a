"""What every further part of a round is: it measures one thing, in a folder of its own, and gives one section."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from .run import Result
from .section import Section


@dataclass(frozen=True, slots=True)
class Scale:
    """How large a part is measured. ``seconds``: the length of one run."""

    quick: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Part:
    """``estimate``: seconds that it takes. ``in_quick``: whether a quick round has it."""

    name: str
    title: str
    measure: Callable[[Scale, Path], Awaitable[Section]]
    estimate: Callable[[Scale], float]
    in_quick: bool = True


def per_message(run: Result, process: str = "gateway") -> float:
    """CPU microseconds of a process for each message that was accepted."""
    return 1e6 * run.cpu[process] / run.acked
