"""What a run of a job shows while it runs: one line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Final, Self

from rich.markup import escape
from rich.status import Status

from ..drivers.spark.failures import hush
from ..entities.errors import JobFailed, Unavailable
from .console import err
from .spark_start import SIGNALS, restore

if TYPE_CHECKING:
    from ..drivers.spark.progress import Progress
    from ..drivers.spark.runner import Runner

LINE_EVERY_S: Final = 10.0
SPINNER: Final = 2


class Screen:
    """Shows progress on standard error; a context manager. ``quiet``: for programs, which get a summary alone."""

    def __init__(self, name: str, *, quiet: bool) -> None:
        self._name = name
        self._quiet = quiet
        self._status = Status("", console=err) if err.is_terminal and not quiet else None
        self._said_at = 0.0
        self._begun = time.monotonic()

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, text: str) -> None:
        """Show a text."""
        if self._status is not None:
            self._status.update(f"[bold]{escape(self._name)}[/]  {escape(text)}")
        elif not self._quiet and time.monotonic() - self._said_at >= LINE_EVERY_S:
            self._said_at = time.monotonic()
            err.print(f"{self._name}  {text}", markup=False, soft_wrap=True)

    def show(self, progress: Progress) -> None:
        """Show how the run gets on; on a terminal as much of it as one line holds."""
        room = None if self._status is None else err.width - SPINNER - len(self._name) - 2
        self.say(line_of(progress, time.monotonic() - self._begun, room))


def line_of(progress: Progress, seconds: float, room: int | None = None) -> str:
    """The progress as one line. ``seconds``: since the run began. ``room``: what counts least is left out beyond it."""
    if progress.batches:
        parts = [f"batch {progress.batches:,}"]
        if progress.lag is not None:
            parts.append(f"{progress.lag:,} waiting")
        parts += [f"in all {progress.messages:,} messages", f"{progress.pace:,.0f} messages a second"]
        if progress.rows:
            parts.append(f"{progress.rows:,} rows")
    elif progress.range is None and not progress.busy:
        parts = ["waiting for messages"]
    else:
        first = "first batch: " if progress.busy else ""
        parts = [first + ("under way" if progress.range is None else f"reading {progress.range:,} messages")]
        done, total = progress.tasks
        if progress.step:
            parts.append(f"step {progress.step}")
        if total:
            parts.append(f"{done} of {total} tasks")
        parts.append(f"{seconds:.0f} s")
        if progress.rows:
            parts.append(f"{progress.rows:,} rows read")
    while room is not None and len(parts) > 1 and len(", ".join(parts)) > room:
        parts.pop()
    return ", ".join(parts)


@contextmanager
def told_where(said: Path | None) -> Iterator[None]:
    """Keep traces of Spark's two languages off the terminal, and say where they are when something failed.

    ``said``: the file that Spark's processes write to; None leaves all as it is.
    """
    if said is None:
        yield
        return
    hush()
    try:
        yield
    except (JobFailed, Unavailable):
        if said.exists() and said.stat().st_size:
            err.print(f"What Spark itself said is in {said}", markup=False, soft_wrap=True)
        raise


@contextmanager
def stop_on_signals(runner: Runner) -> Iterator[None]:
    """Let the first Ctrl-C or TERM stop the run, where it can between two batches, and the second one end it at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        restore(dict.fromkeys(SIGNALS, signal.SIG_DFL))
        err.print(f"stopping{after}; once more ends it at once", style="yellow")
        runner.stop()

    after = " after this batch" if runner.in_batches else ""
    before = {each: signal.signal(each, stop) for each in SIGNALS}
    try:
        yield
    finally:
        restore(before)
