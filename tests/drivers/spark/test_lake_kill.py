"""kill -9 of the driver in the middle of a micro-batch: the lake holds each message once."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.spark_kills import Held, survive
from tests.support.telemetry import fill_sqlite


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_message_is_in_the_lake_once_after_kills(tmp_path: Path) -> None:
    """Once after a file was written and not committed, once after the commit and before Spark knew of it."""
    log = fill_sqlite(tmp_path / "data", 6_000)
    held = survive(log, tmp_path, ("written", "committed"), per_batch=500)
    assert held == Held(rows=6_000, samples=6_000, places=6_000, strays=held.strays)
    assert held.strays >= 1, "the driver was not killed between a worker's file and the commit"
