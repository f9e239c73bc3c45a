"""What analysts read runs: the how-to about the lake, and the notebook."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nbformat
import pyarrow as pa
import pytest
from deltalake import Transaction
from nbclient import NotebookClient
from traitlets.config import Config

from iotsphere.drivers.spark.sinks.delta import DeltaLake, told_file
from iotsphere.drivers.spark.sinks.parquet import DATE, writing
from tests.support.readings import make
from tests.support.telemetry import fill_sqlite

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[3]
NOTEBOOK = ROOT / "examples" / "telemetry.ipynb"


def fill_lake(folder: Path, period_s: int = 300) -> int:
    """Make a lake that begins a day ago without Spark, and return how many different samples are in it."""
    rows = make(readings=6_000, devices=5, period_s=period_s, start=datetime.now(UTC) - timedelta(days=1)).rows
    dated = rows.append_column(DATE, rows["event_time"].cast(pa.timestamp("us")).cast(pa.date32()))
    lake = DeltaLake(folder)
    lake.provide(dated.schema)
    told = [row for facts in writing(folder, 0)(dated.to_batches()) for row in facts.to_pylist()]
    lake.commit([told_file(row) for row in told], [Transaction("app", 0)], lake.table())
    return len({tuple(row.values()) for row in rows.select(["message_id", "metric", "sample"]).to_pylist()})


def test_the_how_to_does_what_it_says(tmp_path: Path) -> None:
    samples = fill_lake(tmp_path / ".iotsphere" / "lake")
    page = (ROOT / "docs" / "how-to" / "analyse-the-lake.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert f"[({samples},)]" in result.stdout
    yesterday = str(datetime.now(UTC).date() - timedelta(days=1))
    for told in ("meter-00000", "clock_untrusted", "late", yesterday, "Name: value"):
        assert told in result.stdout, told
    assert "Series([]" not in result.stdout


def begin_notebook(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the notebook in a folder as far as its table over time, and print how that is divided."""
    reader: Any = nbformat  # half of it has no types
    notebook = reader.read(NOTEBOOK, as_version=4)
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"][:2]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("IOTSPHERE_")}
    return subprocess.run(
        [sys.executable, "-c", "\n".join([*cells, "print(step, over_time['time'].diff().median())"])],
        cwd=folder, env={**kept, "MPLBACKEND": "Agg", **environment},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_the_notebook_finds_the_lake_above_it_and_divides_a_short_range_by_minutes(tmp_path: Path) -> None:
    examples = tmp_path / "examples"
    examples.mkdir()
    none = begin_notebook(examples)
    assert none.returncode == 1
    looked = f"{examples / '.iotsphere'} or {tmp_path / '.iotsphere'}"
    assert f"there is no lake in {looked}: run `iotsphere spark lake`" in none.stderr
    fill_lake(tmp_path / ".iotsphere" / "lake", period_s=1)
    found = begin_notebook(examples)
    assert found.stdout == "minute 0 days 00:01:00\n", found.stderr
    elsewhere = begin_notebook(examples, IOTSPHERE_DATA=str(tmp_path / "other"))
    assert f"there is no lake in {tmp_path / 'other'}: run" in elsewhere.stderr
    fill_lake(tmp_path / "other" / "lake")
    elsewhere = begin_notebook(examples, IOTSPHERE_DATA=str(tmp_path / "other"))
    assert elsewhere.stdout == "hour 0 days 01:00:00\n", elsewhere.stderr


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_lake(tmp_path / "lake")
    fill_sqlite(tmp_path, 10, start=1_000)
    fill_sqlite(tmp_path, 200)  # so that the newest values are not the highest
    monkeypatch.setenv("IOTSPHERE_DATA", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    reader: Any = nbformat  # half of it has no types
    notebook = reader.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    # Of ports that were chosen one may be taken when the kernel begins; its sockets lie in the folder, by short names.
    monkeypatch.chdir(tmp_path)
    sockets = Config({"KernelManager": {"transport": "ipc"}})
    NotebookClient(
        notebook, timeout=500, startup_timeout=240, kernel_name="python3", resources={"metadata": {"path": tmp_path}},
        config=sockets,
    ).execute()  # fmt: skip
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert [output for output in shown if output.output_type == "stream"] == [], "Spark's own words are no result"
    rows = [line.split()[1:4] for line in shown[-1]["data"]["text/plain"].splitlines()[1:]]
    assert rows == [[f"d{number}", "temperature", f"{190 + number}.0"] for number in range(10)]
