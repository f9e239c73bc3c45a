"""kill -9 of the driver in the middle of a micro-batch: MongoDB counts each message once."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.spark_rollup_kills import survive
from tests.support.telemetry import fill_sqlite

MESSAGES = 6_000


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_message_is_counted_once_after_a_kill(tmp_path: Path, mongo_url: str) -> None:
    """After rows of a batch were set and before Spark knew of it, so the batch is done again."""
    fill_sqlite(tmp_path / "data", MESSAGES)
    sums = survive(tmp_path / "data", mongo_url, tmp_path / "checkpoint", ("writing",), per_batch=400)
    assert (sums.readings, sums.total, sums.alike) == (MESSAGES, MESSAGES * (MESSAGES - 1) / 2, True)
