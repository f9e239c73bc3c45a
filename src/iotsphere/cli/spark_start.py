"""What Ctrl-C and TERM do before a job has begun: they end it with one sentence, as nothing was read yet."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import typer

from ..entities.errors import Unavailable
from .console import err

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
WHY: Final = "stopped before Spark had started: nothing was read"


@contextmanager
def ended_by_signals(*, resumable: bool) -> Iterator[None]:
    """Let either signal end what is done meanwhile. Raises Unavailable; ``resumable``: a checkpoint has it done later, so
    that it ends well.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone gets signals
        yield
        return
    before = {each: signal.signal(each, signal.default_int_handler) for each in SIGNALS}
    try:
        yield
    except KeyboardInterrupt as error:
        before = dict.fromkeys(SIGNALS, signal.SIG_DFL)  # once more ends it at once
        if not resumable:
            raise Unavailable(f"{WHY}; run it again") from error
        err.print(WHY, style="yellow")
        raise typer.Exit from error
    finally:
        restore(before)


@contextmanager
def held_back() -> Iterator[list[int]]:
    """Let a signal wait for what is done meanwhile, and tell which came: Java would outlive an end while it starts."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def note(number: int, frame: FrameType | None) -> None:
        restore(dict.fromkeys(SIGNALS, signal.SIG_DFL))
        came.append(number)
        err.print("stopping; once more ends it at once", style="yellow")

    before = {each: signal.signal(each, note) for each in SIGNALS}
    try:
        yield came
    except Exception as error:
        if came:  # what stops a service stops Java too
            raise KeyboardInterrupt from error
        raise
    finally:
        if not came:
            restore(before)


def restore(handlers: dict[signal.Signals, signal._HANDLER]) -> None:
    """Let signals do what these handlers do."""
    for each, handler in handlers.items():
        signal.signal(each, handler)
