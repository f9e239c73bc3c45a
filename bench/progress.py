"""How far a round has come, and how long it will take yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console


class Progress:
    """Steps with an estimate each, in seconds; what the steps done so far took corrects the estimate of the rest."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._planned = 0.0
        self._done = 0.0
        self._spent = 0.0

    def plan(self, seconds: float) -> None:
        """Add a step's estimate."""
        self._planned += seconds

    def drop(self, seconds: float) -> None:
        """A planned step falls away."""
        self._planned -= seconds

    @property
    def remaining(self) -> float:
        """Seconds that the rest will take: estimates weigh most in the beginning, what was seen later on."""
        pace = (self._spent + 20) / (self._done + 20)
        return max(0.0, self._planned - self._done) * pace

    @contextmanager
    def step(self, title: str, seconds: float) -> Iterator[None]:
        """Say what is under way; ``seconds`` is what was planned for it."""
        left = _time(self.remaining)
        share = self._done / self._planned if self._planned else 0
        text = f"{share:4.0%}  {title}  [dim]{left} left"
        begun = self._clock()
        if self._console.is_terminal:
            with self._console.status(text):
                yield
        else:
            self._console.print(text)
            yield
        self._spent += self._clock() - begun
        self._done += seconds


def _time(seconds: float) -> str:
    return f"about {seconds / 60:.0f} min" if seconds >= 90 else f"about {seconds:.0f} s"
