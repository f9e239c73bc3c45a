"""What `make` says when what it runs has failed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from .support.gateway import ROOT

HINT = "With make, options such as --data DIR go into ARGS: make run ARGS='--data DIR'"


@pytest.mark.parametrize(
    ("end", "hinted"), [("exit 2", True), ("exit 1", False), ("kill -9 $$", False), ("exit 0", False)]
)
def test_options_are_explained_where_they_were_refused_alone(tmp_path: Path, end: str, hinted: bool) -> None:
    """And not after a crash, or where a gateway on the same folder runs already."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name, line in ((".ci/venv", "exit 0"), (".venv/bin/python", end)):
        program = tmp_path / name
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
    done = subprocess.run(["make", "run"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (HINT in done.stderr.splitlines()) is hinted
    assert (done.returncode == 0) is (end == "exit 0")
