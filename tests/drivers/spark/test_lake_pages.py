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


def fill_lake(folder: Path) -> int:
    """Make a lake of the last day without Spark, and return how many different samples are in it."""
    rows = make(readings=6_000, devices=5, period_s=300, start=datetime.now(UTC) - timedelta(days=1)).rows
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


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_lake(tmp_path / "lake")
    fill_sqlite(tmp_path, 200)
    monkeypatch.setenv("IOTSPHERE_DATA", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    reader: Any = nbformat  # half of it has no types
    notebook = reader.read(ROOT / "examples" / "telemetry.ipynb", as_version=4)
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
    assert "temperature" in shown[-1]["data"]["text/plain"]
