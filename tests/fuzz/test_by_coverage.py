"""A short round of coverage-guided fuzzing with each test run; CONTRIBUTING.md says how to let it run for hours."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gateway import ROOT
from tests.support.servers import missing

RUNS = 1_000


@pytest.mark.timeout(500)
def test_a_short_round_finds_nothing(tmp_path: Path) -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip("atheris comes built for Linux on x86-64 alone")
    if importlib.util.find_spec("atheris") is None:
        missing("atheris is not installed: run `make setup`")
    # libFuzzer watches the peak of its memory, and the peak of a process begins with that of the one which forked it:
    # behind a shell it is its own, and not that of the tests that ran here before.
    command = ["sh", "-c", '"$@"; exit $?', "sh"]
    command += [sys.executable, "-m", "tests.fuzz.by_coverage", str(tmp_path / "corpus"), f"-runs={RUNS}", "-seed=1"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    assert not list(tmp_path.glob("crash-*"))
    reached = [int(found) for found in re.findall(r"cov: (\d+)", done.stderr)]
    assert reached[-1] > 300  # it does see the product's code
    assert f"Done {RUNS} runs" in done.stderr
