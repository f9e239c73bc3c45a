"""The remaining time: planned at first, and by what was seen later."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from bench.progress import Progress


def test_what_was_seen_corrects_what_was_planned() -> None:
    now = [0.0]
    text = StringIO()
    progress = Progress(Console(file=text, width=100), lambda: now[0])
    progress.plan(100)
    progress.plan(100)
    progress.plan(300)
    assert progress.remaining == 500
    with progress.step("the first", 100):
        now[0] += 220  # twice as long, but for the start
    assert progress.remaining == pytest.approx(400 * 240 / 120)
    progress.drop(300)
    assert progress.remaining == pytest.approx(100 * 240 / 120)
    with progress.step("the second", 100):
        now[0] += 1
    assert progress.remaining == 0
    assert text.getvalue().splitlines() == ["  0%  the first  about 8 min left", " 50%  the second  about 3 min left"]
