"""`iotsphere spark` before Spark has started: what is refused then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from .support.command_line import iotsphere_command
from .support.telemetry import fill_sqlite


@pytest.mark.parametrize("words", [(), ("--follow",), ("--maintain",)])
async def test_a_table_of_another_tool_is_refused_before_spark_starts(tmp_path: Path, words: tuple[str, ...]) -> None:
    other = tmp_path / "other"
    await asyncio.to_thread(fill_sqlite, tmp_path, 1)
    write_deltalake(str(other), pa.table({"a": [1], "b": ["x"]}))
    before = set(other.rglob("*"))
    told = await iotsphere_command(
        "spark", "lake", *words, "--output", str(other), "--data", str(tmp_path), "--gateway", "none", expect=2
    )
    assert told == (
        f"request_invalid: {other} holds a Delta table of another tool (it is partitioned by nothing, not by date): "
        "name another folder with --output\n"
    )
    assert set(other.rglob("*")) == before
