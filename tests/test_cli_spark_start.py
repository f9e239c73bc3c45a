"""`iotsphere spark` before Spark has started: what is refused then, and what ends it."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from .support.command_line import iotsphere_command, running
from .support.telemetry import fill_sqlite
from .support.waiting import until


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


@pytest.mark.parametrize(
    ("how", "words", "code", "told"),
    [
        (signal.SIGINT, (), 1, "unavailable: stopped before Spark had started: nothing was read; run it again\n"),
        (signal.SIGTERM, ("--follow",), 0, "stopped before Spark had started: nothing was read\n"),
    ],
)
@pytest.mark.timeout(300)
async def test_a_signal_while_spark_starts_ends_it_in_one_sentence(
    tmp_path: Path, how: signal.Signals, words: tuple[str, ...], code: int, told: str
) -> None:
    await asyncio.to_thread(fill_sqlite, tmp_path, 1)
    said = tmp_path / "spark" / "work" / "lake.log"  # which is made just before Java is started
    async with running("spark", "lake", *words, "--data", str(tmp_path), "--gateway", "none") as job:
        await until(said.exists, "Spark starts")
        job.send_signal(how)
        # Java has the same standard error, so that this ends when it has ended too.
        out, err = await job.communicate()
    assert (job.returncode, out.decode(), err.decode()) == (
        code,
        "",
        f"lake  starting Spark\nstopping; once more ends it at once\n{told}",
    )
    assert not (tmp_path / "lake").exists()
